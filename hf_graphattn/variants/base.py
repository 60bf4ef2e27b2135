"""What every variant consists of: a frozen config, and the filter module that it builds.

A variant's whole contract is `GraphFilter.forward(attend, value)`. Here `attend(x) = A x` with
`A = softmax(Q K^T * scaling + mask)` of shape (B, H, N, N), and `x` and `value` of shape
(B, H, N, D). From this one formula come training, `output_attentions` and generation.

A filter of tokens leaves attention plain and acts after it, on (B, N, C) as on one head. There
`attend(x)` is the attention of the tokens to themselves, `softmax(X X^T + mask) x`, with the mask
of the layer's attention: padding is excluded, and later tokens in causal models. Masks other
than that of padding are ours: the papers have images, and bidirectional models.
"""

from __future__ import annotations

import dataclasses
import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from hf_graphattn.backends import Attention as Attend
from hf_graphattn.backends import AttentionInputs, FirstValues, choose, make, one_per_query_head
from hf_graphattn.errors import GraphAttentionError, refusal
from hf_graphattn.kernels import Kernel
from hf_graphattn.kernels import combination as combination


def setting(default: Any, help: str, *, kw_only: bool = False) -> Any:
    """A config field with its help text, which `--help`, the docs and the model card show."""
    return dataclasses.field(default=default, kw_only=kw_only, metadata={"help": help})


TRAINABLE_HELP = "which scalars are learned, one value for each head; the others stay as given"
TOKENS_TRAINABLE_HELP = TRAINABLE_HELP.replace("each head", "each channel")
LAYERS_HELP = (
    "which self-attention layers get the filter: indices in model order, negative from the end "
    "(default: all)"
)


@dataclasses.dataclass(frozen=True)
class VariantConfig:
    """The settings of one variant. Subclasses are frozen dataclasses made known by `register`.

    `scalars` names the fields that hold the filter's scalars. Such a field is one number or, where
    a subclass allows it, several numbers that the heads share evenly. The scalars in `trainable`
    become float32 parameters of shape (num_heads,).
    """

    variant: ClassVar[str] = ""  # set by `register`
    title: ClassVar[str] = ""  # what its paper calls it, in figures; else `register` sets the name
    colour: ClassVar[int | None] = None  # its place in the figures' palette; else any that is free
    scalars: ClassVar[tuple[str, ...]] = ()
    neutral: ClassVar[tuple[float, ...]] = ()  # the scalars' values at plain attention, if known
    # Settings that came after a variant was released: saved where they are not their default, so
    # that a checkpoint from before is read, and has the checksum it had.
    later: ClassVar[tuple[str, ...]] = ()
    # Where after attention it acts on tokens (`tokens`), "norm" or "branch"; empty: in attention.
    place: ClassVar[str] = ""

    trainable: tuple[str, ...] = setting((), TRAINABLE_HELP, kw_only=True)
    layers: tuple[int, ...] | None = setting(None, LAYERS_HELP, kw_only=True)

    def __post_init__(self) -> None:
        for name in self.scalars:
            self._set(name, self._checked_scalar(name, getattr(self, name)))
        self._set("trainable", self._checked_trainable(self.trainable))
        if self.layers is not None:
            self._set("layers", self._checked_layers(self.layers))

    def build(self, num_heads: int) -> GraphFilter:
        """Build the filter of one attention layer.

        Args:
            num_heads: the layer's heads; for a filter of tokens, their channels.

        Returns:
            A new filter with the config's scalars.
        """
        raise NotImplementedError

    def at_neutral(self) -> Self | None:
        """The same settings with the scalars at plain attention; None if none are known."""
        if not self.neutral:
            return None
        values: dict[str, Any] = dict(zip(self.scalars, self.neutral, strict=True))
        for name, value in values.items():
            several = getattr(self, name)
            values[name] = (value,) * len(several) if isinstance(several, tuple) else value
        return dataclasses.replace(self, **values)

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON values (tuples become lists)."""
        as_json = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in as_json.items()}

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`.

        Raises:
            GraphAttentionError: the variant does not have one of the settings.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in settings:
            if name not in known:
                raise refusal(f"a setting of variant {cls.variant!r}", name, ", ".join(known))
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()})

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # a frozen dataclass refuses plain assignment

    def _checked_scalar(self, name: str, value: Any) -> float | tuple[float, ...]:
        return finite_number(name, value)

    def _checked_trainable(self, names: Any) -> tuple[str, ...]:
        if not is_sequence(names) or any(name not in self.scalars for name in names):
            allowed = f"a sequence of names out of {', '.join(self.scalars)}"
            remedy = f"Write trainable=({names!r},)." if isinstance(names, str) else ""
            raise refusal("trainable", names, allowed, remedy)
        return tuple(dict.fromkeys(names))

    def _checked_layers(self, layers: Any) -> tuple[int, ...]:
        if not is_sequence(layers) or not layers or not all(map(is_integer, layers)):
            raise refusal("layers", layers, "None for all layers, or one or more integers")
        return tuple(int(layer) for layer in layers)


def is_integer(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_sequence(value: object) -> bool:
    """Whether it holds several values, as text does not."""
    return isinstance(value, Sequence) and not isinstance(value, str)


def finite_number(name: str, value: Any) -> float:
    """Read a setting.

    Args:
        name: the setting's name.
        value: the user's value.

    Returns:
        The value as a float.

    Raises:
        GraphAttentionError: it is no number that float32, the scalars' dtype, can hold.
    """
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if is_number and abs(float(value)) <= torch.finfo(torch.float32).max:
        return float(value)
    raise refusal(name, value, "one finite number of float32, up to 3.4e38")


def every_value(attend: Attend, value: Tensor) -> Tensor:
    """The values of all keys, (B, H, Nk, D): without a cache they are those of the rows."""
    cached = attend.every_value
    return value if cached is None else one_per_query_head(cached, value)


def attend_all(attend: Attend, x: Tensor, **changes: Any) -> Tensor:
    """`A x` of an x that has a row for every key, of the call's A or of one with other inputs.

    Not `attend` itself: with a cache its first call is on the values of all keys as they are.

    Args:
        attend: the call's.
        x: (B, H, Nk, D).
        changes: fields of `AttentionInputs`, as `query=`, that differ from those of the call. A
            filter that passes any has no backend `delegate`, which does not read them.

    Returns:
        (B, H, Nq, D).
    """
    return make(attend.name, dataclasses.replace(attend.inputs, **changes))(x)


def first_values(attend: Attend) -> FirstValues:
    """The values of the first layer of the stack, in this forward.

    Raises:
        GraphAttentionError: there are none, since the filter is not in a patched model.
    """
    if attend.inputs.first is None:
        raise GraphAttentionError(
            "this filter reads the values of the first layer, which only a transformers model that "
            "patch_model has patched passes on to the others. Use another filter here."
        )
    return attend.inputs.first


class GraphFilter(nn.Module):
    """One attention layer's filter: its scalars, and the formula that uses them.

    A learned scalar is a `nn.Parameter` of shape (num_heads,). It stays float32 when the model is
    cast to a smaller dtype, since steps of 2e-5 vanish in bfloat16; under `model.double()` it is
    float64. A fixed scalar is a plain number or, if it differs between heads, a buffer that is not
    in the state dict. Under tensor parallelism these tensors are DTensors: a filter reads them with
    `own` and `scalar`.
    """

    # The backends that can compute it, in the order in which "auto" prefers them.
    backends: ClassVar[tuple[str, ...]] = (
        "sdpa",
        "eager",
        "flash_attention_2",
        "flex_attention",
        "delegate",
    )
    # The variant's kernels, by the backend that runs them; the other backends compute `attend`.
    kernels: ClassVar[Mapping[str, Kernel]] = {}
    # Whether `forward` takes values that query heads share, from a backend that shares them too.
    groups: ClassVar[bool] = False
    # Whether it reads the values of the first layer of its stack, `attend.inputs.first`.
    reads_first: ClassVar[bool] = False
    # The formula of an output that is no matrix times the values; empty where it is one.
    without_matrix: ClassVar[str] = ""
    backend: str = "auto"  # the user's choice; set by `patch_model`
    operands: int = 0  # calls of `attend` after the first; a cache keeps their arguments
    stack: str = ""  # the layers that it is one of; set by `patch_model` where `reads_first`
    begins: bool = False  # whether its layer is the first of them
    is_shared: bool = False  # whether each process has a part of the heads; set by `share_heads`

    def __init__(self, config: VariantConfig, num_heads: int) -> None:
        super().__init__()
        self.variant_config = config
        self.num_heads = num_heads
        for name in config.scalars:
            value = getattr(config, name)
            if name in config.trainable:
                setattr(self, name, nn.Parameter(self._per_head(name, value)))
            elif isinstance(value, tuple):
                self.register_buffer(name, self._per_head(name, value), persistent=False)
            else:
                setattr(self, name, value)

    def forward(self, attend: Attend, value: Tensor) -> Tensor:
        """The filter's formula.

        Args:
            attend: x -> A x, both (B, H, N, D).
            value: V, (B, H, N, D); of fewer heads, if the filter `groups`.

        Returns:
            `H V`, (B, H, N, D).
        """
        raise NotImplementedError

    def matrix(self, attend: Attend, value: Tensor) -> Tensor:
        """`H` itself, (B, H, N, N): what `output_attentions` returns.

        In cached generation it has the rows of the new tokens alone, and a column for each key.
        For a filter that is linear in the values it is the output on the identity. A filter that
        is not linear overrides this method.

        Raises:
            GraphAttentionError: the filter is one of those `without_matrix`.
        """
        if self.without_matrix:
            raise GraphAttentionError(
                f"variant {self.variant_config.variant!r} has no matrix H: its output, "
                f"{self.without_matrix}, is no matrix times the values. Pass "
                f"output_attentions=False (need_weights=False to a MultiheadAttention), and do not "
                f"diagnose a model that has it."
            )
        return self(*attend.on_identity(value))

    def fits(self, backend: str, inputs: AttentionInputs) -> bool:
        """Whether "auto" may use this backend for this call; the variant's kernels have limits."""
        kernel = self.kernels.get(backend)
        return kernel is None or kernel.fits(inputs)

    def choose_backend(self, inputs: AttentionInputs, without: str = "") -> str:
        """The backend for one call, by the rule in `backends.choose`.

        Args:
            inputs: the call's.
            without: the name of a backend that cannot be used there.
        """
        supported = tuple(name for name in self.backends if name != without)
        return choose(self.backend, supported, inputs, self.operands + 1, self.fits)

    def scalar(self, name: str) -> float | Tensor:
        """A scalar in the shape that multiplies (B, H, N, D): a number, or a tensor (H, 1, 1)."""
        value = self.own(name)
        return value.view(-1, 1, 1) if isinstance(value, Tensor) else value

    def own(self, name: str) -> Any:
        """A scalar of the heads that this process has: a number, or a tensor of H rows."""
        value: Any = getattr(self, name)
        return value.to_local() if self.is_shared and hasattr(value, "to_local") else value

    def extra_repr(self) -> str:
        settings = self.variant_config.to_dict()
        return ", ".join([self.variant_config.variant, *(f"{k}={v}" for k, v in settings.items())])

    def _per_head(self, name: str, value: float | tuple[float, ...]) -> Tensor:
        values = value if isinstance(value, tuple) else (value,)
        if self.num_heads % len(values):
            raise refusal(
                name,
                value,
                f"one number, or as many as divide the layer's {self.num_heads} heads evenly",
            )
        return torch.tensor(values, dtype=torch.float32).repeat_interleave(
            self.num_heads // len(values)
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # `model.half()` and `model.to(torch.bfloat16)` call this. The scalars move to the model's
        # new device, but keep their precision.
        def precise(tensor: Tensor) -> Tensor:
            new = fn(tensor)
            return new if new.dtype.itemsize >= tensor.dtype.itemsize else tensor.to(new.device)

        scalars = self.variant_config.scalars
        fixed = {n: b for n, b in self._buffers.items() if n in scalars and b is not None}
        super()._apply(precise, recurse)
        for name, before in fixed.items():
            # `model.to_empty(...)` calls this too, and no state dict restores these buffers.
            after: Any = self._buffers[name]
            if after is not before:
                value = getattr(self.variant_config, name)
                with torch.no_grad():
                    after.copy_(self._per_head(name, value) if before.is_meta else before)
        return self


class TokenFilter(GraphFilter):
    """One layer's filter of tokens. A learned scalar is a `nn.Parameter` of shape (C,)."""

    def forward(self, attend: Attend, value: Tensor) -> Tensor:
        """The filtered tokens, (B, 1, N, C), from the tokens and their attention to themselves."""
        raise NotImplementedError

    def matrix(self, attend: Attend, value: Tensor) -> Tensor:
        """`A`, (B, H, N, N), of the layer's attention, which stays plain."""
        return attend.matrix

    def scalar(self, name: str) -> float | Tensor:
        """A scalar in the shape that multiplies (B, 1, N, C): a number, or a tensor (C,)."""
        value: float | Tensor = self.own(name)
        return value


def refuse_tokens(config: VariantConfig, where: str) -> None:
    """Refuse the config of a filter of tokens.

    Args:
        config: the user's config.
        where: what can have filters of attention alone, for the message.

    Raises:
        GraphAttentionError: the config is that of a filter of tokens.
    """
    if config.place:
        raise refusal(
            "config",
            config,
            f"a filter of attention in {where}, since variant {config.variant!r} filters tokens "
            f"after attention, in transformers models",
        )


_CONFIGS: dict[str, type[VariantConfig]] = {}
ConfigClass = TypeVar("ConfigClass", bound=type[VariantConfig])


def register(name: str) -> Callable[[ConfigClass], ConfigClass]:
    """Class decorator that makes a config known as variant `name`.

    Raises:
        GraphAttentionError: the name is not lower-case, is taken (both modules are named), or is
            "none"; or the class is not a frozen dataclass derived from `VariantConfig`, or names a
            scalar that is no field.
    """

    def add(cls: ConfigClass) -> ConfigClass:
        is_name = isinstance(name, str) and re.fullmatch(r"[a-z][a-z0-9_]*", name)
        if not is_name or name == "none":
            raise refusal("a variant's name", name, "lower-case letters, digits and _, not 'none'")
        # Without the decorator, the fields that a class adds would not be fields.
        if not issubclass(cls, VariantConfig) or "__dataclass_params__" not in vars(cls):
            raise refusal(
                f"the config of variant {name!r}",
                cls,
                "a frozen dataclass from VariantConfig",
                "Write @register(...) above @dataclass(frozen=True).",
            )
        if name in _CONFIGS:
            raise GraphAttentionError(
                f"variant {name!r} is defined twice: in {_CONFIGS[name].__module__} and in "
                f"{cls.__module__}. Give one of them another name."
            )
        fields = [field.name for field in dataclasses.fields(cls)]
        if not set(cls.scalars) <= set(fields):
            allowed = f"names of its fields: {', '.join(fields)}"
            raise refusal(f"'scalars' of variant {name!r}", cls.scalars, allowed)
        attributes = vars(cls)  # without those of a variant that it derives from
        colour = attributes.get("colour")
        taken = {other.colour: other.variant for other in _CONFIGS.values()}
        if colour is not None and colour in taken:
            allowed = f"a place that no other variant has; this is {taken[colour]}'s"
            raise refusal(f"the colour of variant {name!r}", colour, allowed, "Or say none.")
        cls.variant, cls.title, cls.colour = name, attributes.get("title", name), colour
        cls.neutral = attributes.get("neutral", ())
        _CONFIGS[name] = cls
        return cls

    return add


def variant_configs() -> dict[str, type[VariantConfig]]:
    """The registered variants: name -> config class, in order of their names."""
    return dict(sorted(_CONFIGS.items()))


def variant_from_dict(saved: dict[str, Any]) -> VariantConfig:
    """The config that `{"variant": name, "settings": {...}}` describes."""
    name = saved.get("variant")
    if not isinstance(name, str) or name not in _CONFIGS:
        raise refusal(
            "the variant",
            name,
            ", ".join(variant_configs()),
            "If it comes from another package, import that package first.",
        )
    settings = saved.get("settings", {})
    if not isinstance(settings, dict):
        raise refusal(f"'settings' of variant {name!r}", settings, "an object of settings")
    return _CONFIGS[name].from_dict(settings)


def variant_to_dict(config: VariantConfig) -> dict[str, Any]:
    """The inverse of `variant_from_dict`, in JSON values."""
    settings = config.to_dict()
    for name in config.later:
        if settings[name] == getattr(type(config), name):
            del settings[name]
    return {"variant": config.variant, "settings": settings}
