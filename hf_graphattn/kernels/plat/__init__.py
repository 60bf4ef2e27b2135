"""p-LaT's kernels: the reference (`naive`), and blocks of query rows (`blockwise`)."""

from .blockwise import blockwise
from .naive import naive, weights

__all__ = ["blockwise", "naive", "weights"]
