"""The kernels of polynomials in A: passes of attention (`naive`), and blocks of A."""

from hf_graphattn.kernels.base import Kernel

from .blockwise import blockwise, fits
from .naive import naive

# By the backend that they run under.
KERNELS = {"shared": Kernel(blockwise, fits, stores=True)}

__all__ = ["KERNELS", "blockwise", "naive"]
