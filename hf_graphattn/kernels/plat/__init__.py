"""p-LaT's kernels: the reference (`naive`), blocks of query rows (`blockwise`), and `triton`."""

from hf_graphattn.kernels.base import Kernel

from .blockwise import blockwise
from .naive import Values, naive, weights
from .triton import fits, triton

# By the backend that they run under, in the order in which "auto" prefers them.
KERNELS = {"triton": Kernel(triton, fits), "blockwise": Kernel(blockwise)}

__all__ = ["KERNELS", "Values", "blockwise", "naive", "triton", "weights"]
