"""The kernels of polynomials in A: passes of attention (`naive`), and blocks of A (`blockwise`)."""

from hf_graphattn.kernels.base import Kernel

from .blockwise import blockwise, fits
from .naive import naive

# By the backend that they run under, in the order in which "auto" prefers them.
KERNELS = {"shared": Kernel(blockwise, fits)}

__all__ = ["KERNELS", "blockwise", "naive"]
