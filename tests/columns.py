"""The columns of docs/architectures.csv: what is tried with a tiny model of each type.

A column is a function of a `Subject` that gives a `Cell`. A refusal of the library is caught and
told, and so is any other error, so that no column hides another.
"""

from __future__ import annotations

import copy
import math
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from zoo.batches import inputs

import hf_graphattn as ga
from hf_graphattn.architectures import find
from hf_graphattn.model.configs import model_configs
from hf_graphattn.patching import insert_filters, remove_filters
from hf_graphattn.patching.check import FILTERED, MASKS, NEUTRAL, Check

# Of several the last holds.
NOTHING, EXACT, REFUSED, FAILS, WRONG = "-", "exact", "refused", "fails", "not exact"
STATES = (NOTHING, EXACT, REFUSED, FAILS, WRONG)
ROUNDING = 1e-5  # of float32, in a tiny model


@dataclass(frozen=True)
class Cell:
    """What a column says of a model type. why: unless it is exact. error: the largest, relative."""

    state: str
    why: str = ""
    error: float = 0.0


class Subject:
    """A tiny model and its batches, without padding and padded on either side.

    It keeps no cache where none is asked for, since some types' caches have no room for a filter's.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        for config in model_configs(self.model):
            config.use_cache = False
        self.batch = inputs(self.model)
        outputs(self.model, self.batch)  # what does not run counts as not built
        padded = [inputs(self.model, side) for side in ("left", "right")]
        has_padding = "attention_mask" in self.batch
        self.batches = [self.batch]
        self.batches += [each for each in padded if has_padding and _runs(self.model, each)]

    @property
    def missed(self) -> str:
        """What the batches do not reach, so that nothing is known of it, in the check's words."""
        checks = [] if told(partial(gfsa, self)).state == REFUSED else self.automatic
        rows = [row for found in checks for row in found.rows if row.name == "reached"]
        return next((row.note for row in rows if not row.passed), "")

    @property
    def copied(self) -> PreTrainedModel:
        return copy.deepcopy(self.model)

    @property
    def filtered(self) -> PreTrainedModel:
        """A copy with filters, checked or not."""
        model = self.copied
        insert_filters(find(model), FILTERED, "auto")
        return model

    @cached_property
    def automatic(self) -> list[Check]:
        return self._checks("auto")

    @cached_property
    def fused(self) -> list[Check]:
        return self._checks("sdpa")

    def _checks(self, backend: str) -> list[Check]:
        return [ga.check(self.model, backend=backend, **each) for each in self.batches]


def neutral(subject: Subject) -> Cell:
    """Filters that change nothing, against plain eager attention."""
    return _worst(subject.automatic, "plain")


def gfsa(subject: Subject) -> Cell:
    """GFSA against GFSA whose every `attend` is the architecture's own eager attention."""
    return _worst(subject.automatic, "filtered", "effect")


def sdpa(subject: Subject) -> Cell:
    """Both with fused passes, which "auto" makes of longer sequences and on other devices."""
    return _worst(subject.fused, "plain", "filtered")


def plat(subject: Subject) -> Cell:
    """p-LaT's kernel for any device against its form with the kept matrix, under padding."""
    batch = subject.batches[-1]
    return _worst([ga.check(subject.model, ga.PLaTConfig(), backend="blockwise", **batch)], "plat")


def cached(subject: Subject) -> Cell:
    """What it generates with a cache, against without."""
    return _worst(subject.automatic, "cached")


def gradients(subject: Subject) -> Cell:
    """Every gradient of neutral filters against plain eager attention's, of GFSA against GFSA with
    the architecture's own attention; and each filter's scalars have one."""
    backends = ["auto"] if told(partial(sdpa, subject)).state == REFUSED else ["auto", "sdpa"]
    cells = []
    for batch in subject.batches:
        cell = _gradients(subject.copied, batch, backends)
        if cell.state != WRONG or not _reads_padding(subject.model, batch):
            cells.append(cell)
    return max(cells, key=_order)


COLUMNS: dict[str, Callable[[Subject], Cell]] = {
    "neutral": neutral,
    "GFSA": gfsa,
    "sdpa": sdpa,
    "p-LaT": plat,
    "gradients": gradients,
    "cache": cached,
}


def told(tried: Callable[[], Cell]) -> Cell:
    """What was tried gives a cell, of an error too."""
    try:
        return tried()
    except ga.GraphAttentionError as error:
        return Cell(REFUSED, line(error))
    except Exception as error:
        return Cell(FAILS, line(error))


def line(error: BaseException) -> str:
    """An error in one line, with its class where it is not the library's own.

    Temporary folders have no names, so that each run writes the same table.
    """
    name = "" if isinstance(error, ga.GraphAttentionError) else f"{type(error).__name__}: "
    text = re.sub(rf"{re.escape(tempfile.gettempdir())}/tmp\w+", "FOLDER", str(error))
    return (name + " ".join(text.split()))[:200]


def outputs(model: nn.Module, batch: dict[str, Any]) -> dict[str, Tensor]:
    """The floating-point tensors of what a model returns, by their numbers; infinities are kept."""
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)  # some models draw what they mask
        return {str(i): each for i, each in enumerate(floats(model(**batch)))}


def _runs(model: nn.Module, batch: dict[str, Any]) -> bool:
    try:
        return not any(each.isnan().any() for each in outputs(model, batch).values())
    except Exception:
        return False


def _reads_padding(model: nn.Module, batch: dict[str, Any]) -> bool:
    """Whether what the plain model returns, as its gradients are taken, depends on the padding.

    Such rows attend nowhere: the gradients of fused passes there are not those of eager attention,
    which lets them attend everywhere alike.
    """
    if "input_ids" not in batch or batch["attention_mask"].all():
        return False
    ids, mask = batch["input_ids"], batch["attention_mask"].bool()
    mask = mask.repeat_interleave(len(ids) // len(mask), 0)  # a row for each codebook
    other = batch | {"input_ids": torch.where(mask, ids, ids.roll(1, 0))}
    with torch.no_grad():
        found, own = (of_tokens(model(**each), each) for each in (other, batch))
    return difference(dict(enumerate(found)), dict(enumerate(own))) > ROUNDING


def _order(cell: Cell) -> tuple[int, float]:
    return STATES.index(cell.state), cell.error


def _worst(checks: list[Check], *names: str) -> Cell:
    cells = [_cell(row) for found in checks for row in found.rows if row.name in names]
    return max(cells, key=_order, default=Cell(NOTHING))


def _cell(row: Any) -> Cell:
    if not row.passed:
        return Cell(WRONG, f"{row.name} {row.error:.0e}", row.error)
    if row.error is None:
        return Cell(REFUSED if row.note.startswith("refused") else NOTHING, row.note)
    return Cell(EXACT, error=0.0 if row.name == "effect" else row.error)


def _gradients(model: PreTrainedModel, batch: dict[str, Any], backends: list[str]) -> Cell:
    model, plain = differentiable(model, batch)
    if not plain:
        return Cell(NOTHING, "the outputs have no gradient")

    def run(config: ga.VariantConfig, backend: str) -> dict[str, Tensor]:
        insert_filters(find(model), config, backend)
        try:
            return backward(model, batch)
        finally:
            remove_filters(model)

    own, unchanged = run(FILTERED, "delegate"), run(NEUTRAL, "auto")
    silent = without_gradient(model, own)
    if silent:
        return Cell(WRONG, f"none for the scalars of {', '.join(sorted(silent))}")
    error = max(
        difference({name: unchanged[name] for name in unchanged.keys() & plain.keys()}, plain),
        *(difference(run(FILTERED, backend), own) for backend in backends),
    )
    exact = error <= TOLERANCES[model.dtype]
    return Cell(EXACT if exact else WRONG, "" if exact else f"{error:.0e}", error)


# Relative. Many architectures round to float32 inside, in float64 too.
TOLERANCES = {torch.float64: 1e-4, torch.float32: 1e-3}
SMALL = 1e-3  # of the model's largest gradient, with which tensors of smaller ones are compared


def differentiable(
    model: PreTrainedModel, batch: dict[str, Any]
) -> tuple[PreTrainedModel, dict[str, Tensor]]:
    """(The model with its own eager attention, in float64 if it runs so; its gradients)."""
    model.set_attn_implementation("eager")
    for dtype in TOLERANCES:
        model.to(dtype)
        try:
            found = backward(model, batch)
            if not any(each.isnan().any() for each in found.values()):
                break
        except (RuntimeError, TypeError, ValueError):
            if dtype == torch.float32:
                raise
    return model, found


def backward(model: Any, batch: dict[str, Any]) -> dict[str, Tensor]:
    """The gradients of a random sum of what the model returns of tokens, by parameters' names."""
    given = {
        name: each.to(model.dtype)
        if isinstance(each, Tensor) and each.is_floating_point()
        else each
        for name, each in batch.items()
    }
    model.zero_grad()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = of_tokens(model(**given), batch)
        finite = [torch.where(each.isfinite(), each, 0) for each in made]
        total = sum((each * torch.randn_like(each)).sum() for each in finite)
    if getattr(total, "requires_grad", False):
        total.backward()
    return {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


def of_tokens(output: Any, batch: dict[str, Any]) -> list[Tensor]:
    """The floating-point tensors of what a model returns of tokens; all, where none is told apart.

    What is pooled may be of padding, which means nothing.
    """
    masks = [batch[name].bool() for name in MASKS if isinstance(batch.get(name), Tensor)]
    made = list(floats(output))
    found = [each[mask] for each in made for mask in masks if each.shape[:2] == mask.shape]
    return found or made


def difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest, relative to its tensor's largest; infinite for NaN or where one is missing."""
    expected = {name: each for name, each in expected.items() if each.numel()}
    if not found.keys() >= expected.keys():
        return float("inf")
    least = SMALL * max(_largest(each) for each in expected.values())
    errors = [0.0]
    for name, each in expected.items():
        differs = found[name] != each  # not so where both are infinite, as masked logits are
        if differs.any():
            error = float((found[name] - each)[differs].abs().max()) / max(_largest(each), least)
            errors.append(float("inf") if math.isnan(error) else error)
    return max(errors)


def _largest(tensor: Tensor) -> float:
    """The largest finite one."""
    finite = tensor[~tensor.isinf()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def without_gradient(model: nn.Module, found: dict[str, Tensor]) -> set[str]:
    """Attention classes of which no filter's scalars have a gradient, though parameters have."""
    reached = [name for name, each in found.items() if each.numel() and each.abs().max() > 0]
    trained, filtered = set(), set()
    for attention in find(model).self_attention:
        name = type(attention.module).__name__
        trained |= {name for each in reached if each.startswith(f"{attention.name}.")}
        prefix = f"{attention.name}.graph_filter."
        filtered |= {name for each in reached if each.startswith(prefix)}
    return trained - filtered


def floats(output: Any) -> Iterator[Tensor]:
    """The floating-point tensors of what a model returns."""
    if isinstance(output, Tensor) and output.is_floating_point():
        yield output
    elif isinstance(output, (list, tuple, dict)):
        for each in output.values() if isinstance(output, dict) else output:
            yield from floats(each)
