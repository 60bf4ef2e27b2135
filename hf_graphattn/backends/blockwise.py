"""`blockwise`: for variants with a kernel of their own in torch's operations, on any device.

The kernel reads the call's inputs and works on blocks of query rows; see `kernels/plat/blockwise`.
"""

from __future__ import annotations

from .base import Attention


class BlockwiseAttention(Attention):
    """Holds the call's inputs for the variant's kernel, which computes the output from them."""

    name = "blockwise"
