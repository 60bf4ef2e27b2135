"""A batch as a model takes it, and which of its tokens are not padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from hf_graphattn.errors import refusal


def tensors(batch: object, device: torch.device) -> dict[str, Tensor]:
    """The batch on the model's device, without the entries that are None."""
    allowed = "a dict of tensors, as for model(**batch)"
    if not isinstance(batch, Mapping):
        raise refusal("a batch", type(batch).__name__, allowed)
    given = {name: value for name, value in batch.items() if value is not None}
    if not given:
        raise refusal("a batch", batch, allowed)
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise refusal(f"{name!r} of a batch", type(value).__name__, allowed)
    return {name: value.to(device) for name, value in given.items()}


def real_tokens(
    batch: Mapping[str, Tensor],
    part: str,
    shape: tuple[int, int],
    of_frames: Callable[[int, Tensor], Tensor] | None,
) -> Tensor:
    """True at the real tokens of a stack of layers, (B, N).

    Args:
        batch: what the model reads.
        part: which stack it is.
        shape: the (B, N) of its layers.
        of_frames: of a model that hears, makes the mask of its N frames from that of its inputs.
    """
    speech = part != "decoder" and "input_features" in batch
    name = "decoder_attention_mask" if part == "decoder" else "attention_mask"
    mask = None if speech and of_frames is None else batch.get(name)
    if mask is not None and of_frames is not None and part != "decoder":
        mask = of_frames(shape[1], mask)
    if mask is None:
        return _decoder_tokens(batch, shape) if part == "decoder" else _all(shape)
    if mask.shape != shape:
        raise refusal(
            f"the shape of {name}",
            tuple(mask.shape),
            f"{shape}, an entry for each token",
            "Give the two-dimensional mask that the tokenizer makes.",
        )
    if not ((mask == 0) | (mask == 1)).all():
        raise refusal(
            f"a value of {name}",
            mask[(mask != 0) & (mask != 1)][0].item(),
            "1 at real tokens and 0 at padding",
        )
    return mask.bool()


def _decoder_tokens(batch: Mapping[str, Tensor], shape: tuple[int, int]) -> Tensor:
    """The real tokens of a decoder that has no mask, found by what its input was made from.

    The decoder reads the labels, shifted to the right, or, in a model for classification,
    `input_ids`; their padding is then its own. Labels that are classes have another shape, or are
    floats.
    """
    labels, mask = batch.get("labels"), batch.get("attention_mask")
    if labels is not None and labels.shape == shape and not labels.is_floating_point():
        source, real = "labels", labels != -100
    elif "decoder_input_ids" not in batch and mask is not None and mask.shape == shape:
        source, real = "attention_mask", mask.bool()
    else:
        return _all(shape)
    # Only causality hides this padding: if it were in front, real tokens would attend to it.
    if (real[:, 1:] & ~real[:, :-1]).any():
        raise refusal(
            "the padding of the decoder",
            f"not at the end, by {source}, and without decoder_attention_mask",
            "padding at the end",
            "Real tokens would attend to it. Pad on the right, or give decoder_attention_mask.",
        )
    return real


def _all(shape: tuple[int, int]) -> Tensor:
    return torch.ones(shape, dtype=torch.bool)
