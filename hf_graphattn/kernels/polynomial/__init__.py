"""The kernels of polynomials in A: passes of attention (`naive`), blocks of A, and `triton`."""

from hf_graphattn.kernels.base import Kernel

from .blockwise import blockwise, fits
from .naive import naive
from .triton import triton

# By the backend that they run under.
KERNELS = {"shared": Kernel(blockwise, fits, stores=True), "triton": Kernel(triton)}

__all__ = ["KERNELS", "blockwise", "naive", "triton"]
