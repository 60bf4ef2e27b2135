"""The check that a filter computes what it should on a model.

Of every attention class that transformers dispatches, the convention is known and the details
are not: masks, caches, arguments that only the class reads. So a model whose
classes are not verified is compared with itself, on a copy in float64:

    plain       filters that change nothing, against the architecture's eager attention
    filtered    GFSA, against GFSA whose every `attend` is the architecture's eager attention or,
                where it has none to call, the product of A and the values that its class makes
    fused       the same by fused passes, which "auto" takes for batches that are larger
    effect      GFSA changes what the model returns
    reached     the batch reaches every module that has a filter
    plat ...    the variant of the caller, against its form with the architecture's attention or,
                where that cannot compute it, with the kept matrix
    cached      what it generates with a cache, against without

GFSA's scalars are random there and differ between heads, so that no head can stand for another. The
comparison is ours, not the papers'.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hf_graphattn.architectures import MULTIHEAD, Plan, find
from hf_graphattn.architectures.own_attention import is_registered
from hf_graphattn.backends import DELEGATE, EAGER, SDPA
from hf_graphattn.errors import GraphAttentionError, refusal
from hf_graphattn.interface.dropout import OwnProducts
from hf_graphattn.model.configs import model_configs
from hf_graphattn.model.filters import graph_filters
from hf_graphattn.variants import VariantConfig
from hf_graphattn.variants.gfsa import GFSAConfig

from . import insert_filters, remove_filters

# Relative to a tensor's largest value. Many architectures round to float32 inside, in float64 too.
TOLERANCES = {torch.float64: 1e-5, torch.float32: 1e-4}
NEUTRAL = GFSAConfig(w_K=0.0)
FILTERED = GFSAConfig(order=4, w_0=-0.1, w_K=0.3, trainable=("w_0", "w_1", "w_K"))
TOKENS = 3
MASKS = ("attention_mask", "decoder_attention_mask")
NOT_GENERATED_FROM = ("labels", "decoder_input_ids", "decoder_attention_mask", "use_cache")


@dataclass(frozen=True)
class CheckRow:
    """One comparison.

    Attributes:
        name: what was compared, as in the list above.
        error: the largest difference, relative; None where nothing was compared.
        passed: whether it is within the tolerance.
        note: why it failed, or was not made.
    """

    name: str
    error: float | None
    passed: bool
    note: str = ""

    def __str__(self) -> str:
        error = "" if self.error is None else f"{self.error:.1e}"
        return f"{self.name:10}{'yes' if self.passed else 'NO':5}{error:10}{self.note}".rstrip()


@dataclass(frozen=True)
class Check:
    """The result of `check`; printed, it has a line for each comparison."""

    model: str
    backend: str
    dtype: torch.dtype
    rows: tuple[CheckRow, ...]

    @property
    def passed(self) -> bool:
        """Whether every comparison passed."""
        return all(row.passed for row in self.rows)

    def __str__(self) -> str:
        verdict = "exact" if self.passed else "not exact"
        title = f"{self.model} with backend {self.backend!r}, in {self.dtype}: {verdict}"
        return "\n".join([title, *map(str, self.rows)])


def compare(model: Any, config: VariantConfig, backend: str, batch: Mapping[str, Any]) -> Check:
    """Make the comparisons on a copy of a plain model.

    Args:
        model: the model; it is not touched.
        config: the filters that the caller wants.
        backend: as in `patch_model`.
        batch: the inputs of a forward.

    Raises:
        GraphAttentionError: the filters cannot be put into the model or cannot compute the batch;
            or the plain model cannot.
    """
    copied, run = _copied(model, batch)
    plan = find(copied)
    _refuse_ambiguous(plan, batch)
    for copied_config in model_configs(copied):
        if getattr(copied_config, "use_cache", False):
            copied_config.use_cache = False
    dtype = next(copied.parameters()).dtype
    tolerance, plain = TOLERANCES[dtype], run()
    none, some = (replace(base, layers=config.layers) for base in (NEUTRAL, FILTERED))
    chosen = []
    if config != some:
        outputs = _filtered(plan, run, config, backend)
        chosen.append(_compared(config.variant, outputs, _expected(plan, run, config), tolerance))
    # A backend that the comparison's filter does not have is a kernel of the caller's variant.
    used = backend if backend in ("auto", *some.build(1).backends) else "auto"
    missed: dict[str, torch.nn.Module] = {}
    neutral = _filtered(plan, run, none, used)
    filtered = _filtered(plan, partial(_reaching, copied, run, missed), some, used)
    change, expected = _error(filtered, neutral), _expected(plan, run, some)
    rows = [
        _compared("plain", neutral, plain, tolerance),
        _compared("filtered", filtered, expected, tolerance),
        *(_fused(plan, run, some, expected, tolerance) if used == "auto" else ()),
        CheckRow("effect", change, change > tolerance, "of the filter on what the model returns"),
        _reached(missed),
        *chosen,
    ]
    if hasattr(copied, "can_generate") and copied.can_generate():
        prompt = {name: value for name, value in batch.items() if name not in NOT_GENERATED_FROM}
        rows.append(_cached(plan, prompt, some, used, tolerance))
    return Check(type(model).__name__, backend, dtype, tuple(rows))


def _reaching(
    model: Any, run: Callable[[], list[Tensor]], missed: dict[str, torch.nn.Module]
) -> list[Tensor]:
    """The outputs of a run; `missed` gets the modules with a filter that it does not call."""
    modules = dict(model.named_modules())
    missed |= {name: modules[name] for name in graph_filters(model)}

    def called(name: str, *_: Any) -> None:
        missed.pop(name, None)

    hooks = [m.register_forward_pre_hook(partial(called, name)) for name, m in missed.items()]
    try:
        return run()
    finally:
        for hook in hooks:
            hook.remove()


def _reached(missed: dict[str, torch.nn.Module]) -> CheckRow:
    if not missed:
        return CheckRow("reached", None, True)
    kinds = ", ".join(sorted({type(module).__name__ for module in missed.values()}))
    note = (
        f"the batch does not reach {len(missed)} filters, in {kinds} ({next(iter(missed))} first). "
        f"Pass a batch of all that the model reads, or choose others with layers=(...). A model "
        f"that keeps what it made of earlier inputs fails here too"
    )
    return CheckRow("reached", None, False, note)


def _fused(
    plan: Plan,
    run: Callable[[], list[Tensor]],
    config: GFSAConfig,
    expected: list[Tensor],
    tolerance: float,
) -> list[CheckRow]:
    """Empty if fused passes are refused: then "auto" does not take them either."""
    try:
        outputs = _filtered(plan, run, config, SDPA)
    except GraphAttentionError as error:
        if error.__cause__ is not None:  # not refused, but failed
            raise
        return []
    return [_compared("fused", outputs, expected, tolerance)]


def _refuse_ambiguous(plan: Plan, batch: Mapping[str, Any]) -> None:
    """A registered class may have its heads in another dimension, which as many rows would hide."""
    heads = {e.num_heads for e in plan.self_attention if is_registered(e.module)}
    rows = {len(value) for value in batch.values() if isinstance(value, Tensor) and value.dim()}
    if heads & rows:
        raise refusal(
            "check",
            f"a batch of {', '.join(map(str, heads & rows))} rows",
            "another number of rows than the attention has heads",
        )


def _expected(plan: Plan, run: Callable[[], list[Tensor]], config: VariantConfig) -> list[Tensor]:
    """The outputs of the filters by the architecture's attention or, if that cannot compute them,
    by the kept matrix."""
    first = plan.self_attention[0]
    backends = config.build(first.num_heads).backends
    can_delegate = DELEGATE in backends and not isinstance(first.module, MULTIHEAD)
    with OwnProducts():
        return _filtered(plan, run, config, DELEGATE if can_delegate else EAGER)


def made_batch(model: Any) -> dict[str, Tensor]:
    """Inputs for a model that reads tokens or images, made from its config.

    Returns:
        The arguments of a forward.

    Raises:
        GraphAttentionError: it reads something else.
    """
    generator = torch.Generator().manual_seed(0)
    name = getattr(model, "main_input_name", "other inputs")
    if name == "input_ids":
        config = model.config.get_text_config()
        shape, high = (2, 9), config.vocab_size
        ids = torch.randint(high // 2, high, shape, generator=generator)  # beyond special tokens
        batch = {name: ids, "attention_mask": torch.ones_like(ids)}
        batch["attention_mask"][0, -3:] = 0
        if model.config.is_encoder_decoder:
            batch["decoder_input_ids"] = ids[:, :7]
    elif name == "pixel_values" and isinstance(getattr(model.config, "image_size", None), int):
        size = model.config.image_size
        channels = getattr(model.config, "num_channels", 3)
        batch = {name: torch.randn(2, channels, size, size, generator=generator)}
    else:
        raise refusal(
            "check",
            True,
            f"a batch of the inputs of {type(model).__name__}, which reads {name}",
            "Pass check=batch.",
        )
    return {name: tensor.to(model.device) for name, tensor in batch.items()}


def _copied(model: Any, batch: Mapping[str, Any]) -> tuple[Any, Callable[[], list[Tensor]]]:
    """(A copy in evaluation with eager attention; the run that returns its outputs).

    In float64, or in float32 where some operation has no other form, or where eager attention gives
    NaN in float64: its least number is minus infinity in the float32 of a softmax.
    """
    masks = [batch[name].bool() for name in MASKS if isinstance(batch.get(name), Tensor)]
    for dtype in TOLERANCES:
        try:
            made = copy.deepcopy(model).eval().to(dtype)
            if hasattr(made, "set_attn_implementation"):  # not a plain torch model
                made.set_attn_implementation("eager")
            for module in made.modules():
                if isinstance(module, torch.nn.TransformerEncoder):
                    module.use_nested_tensor = False  # which gives zeros where padding is
            run = partial(_outputs, made, batch, masks, dtype)
            # Where padding is too: 0 times NaN is NaN, which a second A would give to tokens.
            if not any(output.isnan().any() for output in _outputs(made, batch, [], dtype)):
                break
        except Exception as error:
            if dtype == torch.float32:
                raise GraphAttentionError(
                    f"a copy of the plain {type(model).__name__} does not run on the batch of the "
                    f"check: {type(error).__name__}: {error}"
                ) from error
    return made, run


def _outputs(
    model: Any, batch: Mapping[str, Any], masks: list[Tensor], dtype: torch.dtype
) -> list[Tensor]:
    arguments = {name: _cast(value, dtype) for name, value in batch.items()}
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)  # some models draw what they mask
        return [_kept(output, masks) for output in _tensors(model(**arguments))]


def _cached(
    plan: Plan, batch: dict[str, Any], config: GFSAConfig, backend: str, tolerance: float
) -> CheckRow:
    """Compares generation with a cache and without; the row has the refusal, if any."""
    model: Any = plan.model

    def logits(use_cache: bool) -> list[Tensor]:
        arguments = {name: _cast(value, model.dtype) for name, value in batch.items()}
        made = model.generate(
            **arguments,
            use_cache=use_cache,
            do_sample=False,
            num_beams=1,
            min_new_tokens=TOKENS,
            max_new_tokens=TOKENS,
            output_logits=True,
            return_dict_in_generate=True,
        )
        return list(_tensors(made.logits))

    try:
        difference = _error(logits(True), logits(False))
    except Exception as error:  # what a plain model's generation may raise has no bounds
        return CheckRow("cached", None, True, f"not run: it does not generate from this: {error}")
    if difference > tolerance:
        return CheckRow("cached", None, True, f"not run: its own cache differs by {difference:.1e}")
    try:
        cached = _filtered(plan, partial(logits, True), config, backend)
    except GraphAttentionError as error:
        return CheckRow("cached", None, True, f"refused: {error}")
    uncached = _filtered(plan, partial(logits, False), config, backend)
    return _compared("cached", cached, uncached, tolerance)


def _filtered(
    plan: Plan, run: Callable[[], list[Tensor]], config: Any, backend: str
) -> list[Tensor]:
    """The outputs of a run with filters, which are taken out again."""
    model = plan.model
    insert_filters(plan, config, backend)
    if isinstance(config, GFSAConfig):
        _vary(model)
    try:
        return run()
    except GraphAttentionError:
        raise
    except Exception as error:
        raise GraphAttentionError(
            f"a copy of {type(model).__name__} does not run with a filter, though without one it "
            f"does: {type(error).__name__}: {error}"
        ) from error
    finally:
        remove_filters(model)


def _vary(model: Any) -> None:
    """Give each head other scalars, the same each time; what is zero stays."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for graph_filter in graph_filters(model).values():
            for scalar in graph_filter.parameters():
                # No scalar grows: larger ones let rounding errors grow from layer to layer.
                factors = 1 - 0.5 * torch.rand(scalar.shape, generator=generator)
                scalar.mul_(factors.to(scalar.device))


def _compared(
    name: str, outputs: list[Tensor], expected: list[Tensor], tolerance: float
) -> CheckRow:
    error = _error(outputs, expected)
    return CheckRow(name, error, error <= tolerance)


def _error(outputs: list[Tensor], expected: list[Tensor]) -> float:
    """The largest difference, relative to the largest value of its tensor; infinite for NaN."""
    errors = [0.0]
    for one, other in zip(outputs, expected, strict=True):
        if one.shape != other.shape:
            return float("inf")
        differs = one != other  # not so where both are infinite, as masked logits are
        if differs.any():
            difference = (one - other)[differs].abs().max() / other[differs].abs().max()
            errors.append(float(difference.nan_to_num(nan=float("inf"))))
    return max(errors)


def _kept(output: Tensor, masks: list[Tensor]) -> Tensor:
    """The rows of an output that are of tokens, not of padding, which means nothing."""
    for mask in masks:
        if output.shape[:2] == mask.shape:
            return output[mask]
    return output


def _tensors(output: Any) -> Iterator[Tensor]:
    """The floating-point tensors of a model's output, in order; caches are left out."""
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, (list, tuple, dict)):
        for item in output.values() if isinstance(output, dict) else output:
            yield from _tensors(item)


def _cast(value: Any, dtype: torch.dtype | None) -> Any:
    is_cast = isinstance(value, Tensor) and value.is_floating_point() and dtype is not None
    return value.to(dtype) if is_cast else value
