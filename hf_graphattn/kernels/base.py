"""How a variant states that it has a kernel of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from hf_graphattn.backends import AttentionInputs


@dataclass(frozen=True)
class Kernel:
    """One way to compute a variant that fused attention cannot compute.

    compute(inputs, ...): gives the filter's output; the variant's own arguments follow the inputs.
    fits(inputs): tells whether "auto" may use the kernel for this call.
    stores: whether `compute` takes `store`, to which it gives what cached generation keeps.
    """

    compute: Callable[..., Tensor]
    fits: Callable[[AttentionInputs], bool] = lambda inputs: True
    stores: bool = False
