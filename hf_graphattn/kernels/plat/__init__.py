"""p-LaT's kernels: the reference (`naive`), blocks of query rows (`blockwise`), and `triton`."""

from .blockwise import blockwise
from .naive import Values, naive, weights
from .triton import triton

__all__ = ["Values", "blockwise", "naive", "triton", "weights"]
