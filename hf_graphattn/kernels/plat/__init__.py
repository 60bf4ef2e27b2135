"""p-LaT's kernels: the reference (`naive`), and blocks of query rows (`blockwise`)."""

from .blockwise import blockwise
from .naive import Values, naive, weights

__all__ = ["Values", "blockwise", "naive", "weights"]
