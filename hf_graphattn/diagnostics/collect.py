"""`diagnose(model, data)`: run a model, and measure every layer as it runs.

A hook on each filter sees the attention's inputs and the values. A layer is reduced to numbers
before the next one runs, so no more than one layer's N x N matrices exist at a time.
"""

from __future__ import annotations

import copy
import importlib.metadata
import inspect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from operator import index
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from hf_graphattn.architectures import find
from hf_graphattn.errors import refusal
from hf_graphattn.interface.graph_attn import FILTER, HARMLESS
from hf_graphattn.model.configs import model_configs
from hf_graphattn.model.filters import active_filter, base_model, is_patched, refuse_no_model
from hf_graphattn.model.parallel import is_spread
from hf_graphattn.patching.patch import patch_model, unpatch_model
from hf_graphattn.variants.base import refuse_tokens
from hf_graphattn.variants.gfsa import GFSAConfig
from hf_graphattn.version import __version__

from .diagnosis import Diagnosis
from .measure import Settings, Site, Tally, measure_heads, measure_states, summarize

# Recording attentions, which a config may ask for, would call each filter and hook again.
FLAGS = {"output_hidden_states": True, "output_attentions": False, "return_dict": True}
PLAIN = GFSAConfig(order=1, trainable=())  # a filter that computes plain attention, in one pass


def diagnose(
    model: nn.Module,
    data: Mapping[str, Any] | Iterable[Mapping[str, Any]],
    *,
    max_sequences: int = 16,
    max_tokens: int = 256,
    powers: Sequence[float] = (1.5, 2.0, 2.5),
    orders: Sequence[int] = tuple(range(2, 11)),
) -> Diagnosis:
    """Look inside a model: statistics of its representations, attention and filters.

    The model may be patched or plain; a plain layer's filtered matrix H is A. The model runs in
    eval mode without gradients, and is as it was afterwards, also after an error. Everything is
    measured in float64 from the queries, keys and values that the model itself computed.

    Most of the time goes into the eigenvalues of every head's N x N matrix, O(N^3) on the CPU. For
    12 heads on one thread they take about 0.1 s for each layer and sequence at 128 tokens, 0.5 s at
    256 and 4 to 12 s at 512, and twice that where H is not A. At 256 tokens, BERT-base takes
    minutes for 16 sequences.

    Args:
        model: a transformers model of a supported architecture, with or without a head, and also
            one that PEFT has wrapped.
        data: a batch (dict of tensors, as for `model(**batch)`), or an iterable of batches such
            as a `DataLoader`. Padding is excluded from every statistic: tokens whose
            `attention_mask` is 0, and decoder tokens whose `decoder_attention_mask` is 0 or,
            without that mask, whose `labels` are -100. A decoder that reads `input_ids` shifted
            (sequence classification) has their mask. Without a mask all tokens count, as they do
            in Whisper's encoder, which has none; of other models that hear, a mask of samples or
            features says which frames are tokens.
        max_sequences: how many sequences are read; the others are skipped.
        max_tokens: a longer sequence is refused, because of its cost.
        powers: the p of the p-Dirichlet energies.
        orders: the K for which GFSA's approximation of A^K is compared with A^K.

    Returns:
        A `Diagnosis`: `.to_pandas()`, `.to_json()`, `.figures()`, `.save_html(path)`. In its means
        every sequence has the same weight, whatever its length; those of one token are left out.

    Raises:
        GraphAttentionError: an argument is bad, the model is not supported, a sequence is too long,
            or no sequence has two tokens.
    """
    refuse_no_model(model)
    for attention in find(model).self_attention:
        if not attention.through_interface:
            allowed = "a model whose attention goes through transformers' AttentionInterface"
            raise refusal("model", f"with {type(attention.module).__name__}", allowed)
    if is_spread(model):
        raise refusal("model", "spread over processes", "a model that this process has whole")
    counts = {"max_sequences": max_sequences, "powers": min(powers), "orders": min(orders)}
    for name, value in counts.items():
        if not value > 0:
            raise refusal(name, value, "one or more numbers above 0")
    exponents, numbers = tuple(map(float, powers)), tuple(map(index, orders))
    settings = Settings(max_sequences, max_tokens, exponents, numbers)
    batches = [data] if isinstance(data, Mapping) else data
    with _prepared(model, base_model(model)), ExitStack() as stack:
        reader = _Reader(model, settings, stack)
        for batch in batches:
            reader.read(batch)
            if reader.sequences >= settings.max_sequences:
                break
    tallies = {part: tally for part, tally in reader.tallies.items() if tally.states}
    if not tallies:
        remedy = "Give longer texts, and see that attention_mask is 1 at their tokens."
        raise refusal("data", "without a sequence of two tokens", "one or more", remedy)
    parts = tuple(summarize(name, tally) for name, tally in tallies.items())
    versions = {"hf_graphattn": __version__} | {
        name: importlib.metadata.version(name) for name in ("torch", "transformers")
    }
    return Diagnosis(type(model).__name__, parts, settings.powers, settings.orders, versions)


def _refuse_unknown(model: nn.Module, names: Iterable[str]) -> None:
    """Raise `GraphAttentionError` for a name that no argument has: most models drop it silently."""
    parameters = inspect.signature(model.forward).parameters
    unknown = [name for name in names if name not in parameters and name not in HARMLESS]
    if unknown:
        what = f"a name in the batch of {type(model).__name__}"
        raise refusal(what, unknown[0], ", ".join(parameters))


@contextmanager
def _prepared(model: nn.Module, base: nn.Module) -> Iterator[None]:
    """In this context every self-attention module has a filter; eval mode, and no cache."""
    training = [(module, module.training) for module in model.modules()]
    without_filter: list[nn.Module] = []
    plain = not is_patched(model)
    if plain:
        patch_model(base, PLAIN)
    caching = [c for c in model_configs(model) if getattr(c, "use_cache", False)]
    try:
        for attention in find(model).self_attention:
            if getattr(attention.module, FILTER) is None:  # `layers` of the config left it plain
                setattr(attention.module, FILTER, PLAIN.build(attention.num_heads))
                without_filter.append(attention.module)
        for config in caching:
            config.use_cache = False
        model.eval()
        yield
    finally:
        for config in caching:
            config.use_cache = True
        for module in without_filter:
            delattr(module, FILTER)
            setattr(module, FILTER, None)
        for module, was_training in training:
            module.training = was_training
        if plain:
            unpatch_model(base)


class _Reader:
    """Runs batches, and holds what the hooks have measured so far.

    tallies: one for each part, in the order in which the parts run. sequences: how many have run.
    """

    def __init__(self, model: nn.Module, settings: Settings, stack: ExitStack) -> None:
        self.model, self.settings = model, settings
        self.tallies: dict[str, Tally] = defaultdict(Tally)
        self.sequences = 0
        self._kept: dict[str, list[Tensor]] = {}  # of this batch: part -> each row's real tokens
        self._calls = Counter[str]()  # of this batch: part -> how many layers have run
        self._shapes: dict[str, tuple[int, int]] = {}  # of this batch: part -> (B, N)
        self._batch: Mapping[str, Tensor] = {}
        modules = find(model).self_attention
        paths = {part for attention in modules for part in attention.name.split(".")}
        self._two_stacks = {"encoder", "decoder"} <= paths
        for attention in modules:
            graph_filter: Any = getattr(attention.module, FILTER)
            hook = partial(self._measure, self._site(attention.name, graph_filter))
            handle = graph_filter.register_forward_pre_hook(hook)
            stack.callback(handle.remove)
        self._bar = tqdm(desc="diagnose", unit=" layers", disable=None)
        stack.callback(self._bar.close)

    def read(self, batch: Mapping[str, Any]) -> None:
        """Run one batch and measure it."""
        device = next(self.model.parameters()).device
        self._batch = {name: value.to(device) for name, value in batch.items() if value is not None}
        _refuse_unknown(base_model(self.model), self._batch)
        self._kept, self._calls, self._shapes = {}, Counter(), {}
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            out = self.model(**self._batch, **FLAGS)
        rows = 0
        for part, kept in self._kept.items():
            rows = max(rows, len(kept))
            name = "hidden_states" if part == "model" else f"{part}_hidden_states"
            tally = self.tallies[part]
            for row, keep in enumerate(kept):
                if len(keep) > 1:
                    tally.states.append(measure_states(out[name], row, keep))
                    tally.tokens += len(keep)
        self.sequences += rows

    def _site(self, name: str, graph_filter: Any) -> Site:
        part = "decoder" if "decoder" in name.split(".") else "encoder"
        active = active_filter(graph_filter)
        config = active.variant_config
        refuse_tokens(config, "a model that is diagnosed")
        # A copy, because it is called again for the matrix, and must not call the hook again.
        return Site(
            part=part if self._two_stacks else "model",
            variant="plain" if config is PLAIN else config.variant,
            filter=copy.deepcopy(active).cpu(),
        )

    def _measure(self, site: Site, _: nn.Module, args: tuple[Any, ...]) -> None:
        """The hook of a filter."""
        attend, value = args
        layer = self._calls[site.part]  # counted, since ALBERT's layers share a module
        self._calls[site.part] += 1
        tally = self.tallies[site.part]
        tally.sites[layer] = site
        for row, keep in enumerate(self._rows(site.part, value)):
            if len(keep) > 1:
                numbers = measure_heads(site.filter, attend, value, (row, keep), self.settings)
                tally.layers[layer].append(numbers)
        self._bar.update()

    def _rows(self, part: str, value: Tensor) -> list[Tensor]:
        """The real tokens of each sequence of this batch that is to be read."""
        shape = (value.shape[0], value.shape[2])
        sequences = max(len(entry) for entry in self._batch.values() if entry.ndim)
        if self._shapes.setdefault(part, shape) != shape or shape[0] > sequences:
            raise refusal("model", type(self.model).__name__, "one that attends over no windows")
        if part not in self._kept:
            count = min(len(value), self.settings.max_sequences - self.sequences)
            of_frames = getattr(base_model(self.model), "_get_feature_vector_attention_mask", None)
            mask = _real_tokens(self._batch, part, shape, of_frames)
            kept = [row.nonzero()[:, 0] for row in mask[:count].cpu()]
            longest = max(map(len, kept), default=0)
            if longest > self.settings.max_tokens:
                allowed = f"at most max_tokens={self.settings.max_tokens} tokens"
                remedy = "Truncate it, or raise max_tokens: the cost grows with its cube."
                raise refusal("a sequence's length", longest, allowed, remedy)
            self._kept[part] = kept
        return self._kept[part]


def _real_tokens(
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
        every = torch.ones(shape, dtype=torch.bool)
        return _decoder_tokens(batch, every) if part == "decoder" else every
    if mask.shape != shape:
        remedy = "Give the two-dimensional mask that the tokenizer makes."
        allowed = f"{shape}, an entry for each token"
        raise refusal(f"the shape of {name}", tuple(mask.shape), allowed, remedy)
    other = mask[(mask != 0) & (mask != 1)]
    if len(other):
        allowed = "1 at real tokens and 0 at padding"
        raise refusal(f"a value of {name}", other[0].item(), allowed)
    return mask.bool()


def _decoder_tokens(batch: Mapping[str, Tensor], every: Tensor) -> Tensor:
    """The real tokens of a decoder that has no mask, found by what its input was made from.

    The decoder reads the labels, shifted to the right, or, in a model for classification,
    `input_ids`; their padding is then its own. Labels that are classes have another shape, or are
    floats. `every`, (B, N), are all tokens.
    """
    labels, mask = batch.get("labels"), batch.get("attention_mask")
    if labels is not None and labels.shape == every.shape and not labels.is_floating_point():
        source, real = "labels", labels != -100
    elif "decoder_input_ids" not in batch and mask is not None and mask.shape == every.shape:
        source, real = "attention_mask", mask.bool()
    else:
        return every
    # Only causality hides this padding: if it were in front, real tokens would attend to it.
    if (real[:, 1:] & ~real[:, :-1]).any():
        raise refusal(
            "the padding of the decoder",
            f"not at the end, by {source}, and without decoder_attention_mask",
            "padding at the end",
            "Real tokens would attend to it. Pad on the right, or give decoder_attention_mask.",
        )
    return real
