"""Filters that read the first layer's values: NeuTRENO, value residual."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import FIRST_LAYER_CASES
from edges import leading
from tiny import GENERATORS, HEADS, MODELS, ROWS, build, gradients, inputs, spread
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    BertConfig,
    BertModel,
    BertPreTrainedModel,
    PreTrainedModel,
)
from transformers.masking_utils import eager_mask
from zoo import models

import hf_graphattn as ga
from hf_graphattn.architectures import eager_attention
from hf_graphattn.backends import FirstValues
from hf_graphattn.patching.patch import patch

NEUTRENO, RESIDUAL = (FIRST_LAYER_CASES[n].config for n in ("neutreno", "value_residual"))
CONFIGS = {name: case.config for name, case in FIRST_LAYER_CASES.items()}
# Two stacks, grouped heads, layers that share a module, position bias, images.
SOME = ("ALBERT", "BERT", "GPT-2", "Llama", "T5", "ViT")


class Reference:
    """The formula by an attention function of the test's own, which remembers by itself.

    A comes from the architecture's eager function. `forward` forgets.
    """

    def __init__(self, name: str, scalars: dict[int, dict[str, Tensor]]) -> None:
        self.formula, self.scalars = FIRST_LAYER_CASES[name].formula, scalars
        self.first: dict[Any, Tensor] = {}

    def __call__(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **more: Any
    ) -> tuple[Tensor, Tensor]:
        out, matrix = eager_attention(module)(module, query, key, value, *args, **more)
        scalars = self.scalars.get(id(module))
        if scalars is None:  # cross-attention
            return out, matrix
        value = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
        stack = getattr(module, "is_decoder", None), value.shape
        first = self.first.setdefault(stack, value)
        own = {name: scalar.view(-1, 1, 1) for name, scalar in scalars.items()}
        out = self.formula(matrix, value, first, own)
        return out.transpose(1, 2), matrix


@pytest.fixture
def registered() -> Iterator[Callable[[Reference], None]]:
    def register(reference: Reference) -> None:
        AttentionInterface.register("reference", reference)
        AttentionMaskInterface.register("reference", eager_mask)

    yield register
    AttentionInterface._global_mapping.pop("reference")
    AttentionMaskInterface._global_mapping.pop("reference")


def patched(architecture: str, config: ga.VariantConfig, **settings: Any) -> PreTrainedModel:
    model = ga.patch_model(build(architecture, **settings), config)
    for _, scalar in ga.filter_parameters(model):
        scalar.data = torch.rand(HEADS) + 0.1
    return model


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """To what is left of float64 where the architecture's own softmax is in float32."""
    assert found.keys() == expected.keys()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def cast(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x.double() if x.is_floating_point() else x for name, x in batch.items()}


CASES = [(a, padding) for a in SOME for padding in ROWS[a].padding if padding != "left"]


@pytest.mark.parametrize(("architecture", "padding"), CASES)
@pytest.mark.parametrize("name", CONFIGS)
def test_it_is_the_formula_with_every_gradient(
    name: str, architecture: str, padding: str, registered: Callable[[Reference], None]
) -> None:
    model = patched(architecture, CONFIGS[name]).double()
    batch = cast(inputs(model, padding))
    found = gradients(model, model(**batch)[0], batch)
    learned = dict(ga.filter_parameters(model))
    ga.unpatch_model(model)
    own = {n: nn.Parameter(scalar.detach().clone()) for n, scalar in learned.items()}
    scalars: dict[int, dict[str, Tensor]] = {}
    for each, scalar in own.items():
        module, _, learned_as = each.partition(".graph_filter.")
        scalars.setdefault(id(model.get_submodule(module)), {})[learned_as] = scalar
    registered(Reference(name, scalars))
    model.set_attn_implementation("reference")
    expected = gradients(model, model(**batch)[0], batch)
    assert_close(found, {**expected, **{n: scalar.grad for n, scalar in own.items()}})


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("architecture", ["BERT", "GPT-2", "T5", "ViT"])
def test_gradient_checkpointing_of_several_forwards_at_once(architecture: str, name: str) -> None:
    """What is computed again must read the values of its own forward, not of the latest."""
    model = patched(architecture, CONFIGS[name], **{ROWS[architecture].dropout: 0.0})
    model = model.double().train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    batches = [cast(inputs(model)) for _ in range(2)]

    def both() -> dict[str, Tensor]:
        model.zero_grad()
        outputs = [model(**batch)[0] for batch in batches]
        sum(out.pow(2).sum() for out in outputs).backward()
        return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    expected = both()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    assert_close(both(), expected)
    model.gradient_checkpointing_enable({"use_reentrant": True})
    model.enable_input_require_grads()
    with pytest.raises(ga.GraphAttentionError, match="use_reentrant"):
        both()


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("architecture", GENERATORS)
def test_it_generates_with_the_cache(architecture: str, name: str) -> None:
    settings = {"tie_word_embeddings": False}
    settings |= {"use_sliding_window": False} if architecture == "Qwen3" else {}
    model = patched(architecture, CONFIGS[name], **settings)
    model.generation_config.update(eos_token_id=None, pad_token_id=0)
    batch = {n: x for n, x in inputs(model, "left").items() if not n.startswith("decoder")}
    for mode in ({}, {"num_beams": 3}, {"cache_implementation": "static"}):
        given = {**batch, "do_sample": False, "max_new_tokens": 9}
        beams = {"num_beams": mode.get("num_beams", 1)}
        uncached = model.generate(**given, **beams, use_cache=False)
        assert torch.equal(model.generate(**given, **mode), uncached), mode


def test_windows_of_some_layers_are_refused_for_value_residual_alone() -> None:
    """Qwen3's first layer sees everything, its second a window."""
    for config, refused in ((NEUTRENO, False), (RESIDUAL, True)):
        model = patched("Qwen3", config)
        model.generation_config.update(eos_token_id=None, pad_token_id=0)
        given = {**inputs(model), "do_sample": False, "max_new_tokens": 4}
        uncached = model.generate(**given, use_cache=False)
        if refused:
            with pytest.raises(ga.GraphAttentionError, match="as many in each layer"):
                model.generate(**given)
        else:
            assert torch.equal(model.generate(**given), uncached)


@pytest.mark.parametrize("name", leading(1, CONFIGS))
def test_it_is_saved_compiled_and_taken_out(name: str, tmp_path: Path) -> None:
    model = patched("Llama", CONFIGS[name])
    batch = inputs(model)
    out = model(**batch)[0]
    model.save_pretrained(tmp_path)
    assert torch.equal(ga.from_pretrained(tmp_path)(**batch)[0], out)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(**batch)[0], out)
    base = model.model(**{**batch, "use_cache": False})[0]  # a part, called by itself
    torch.testing.assert_close(model.lm_head(base), out)
    ga.unpatch_model(model)
    assert not any(each._forward_pre_hooks for each in model.modules())


def test_the_first_layer_is_plain_attention_and_must_have_a_filter() -> None:
    model = build("GPT-2", n_layer=1)
    batch = inputs(model)
    plain = model(**batch)[0]
    torch.testing.assert_close(ga.patch_model(model, NEUTRENO)(**batch)[0], plain)
    for layers in ((1,), (-1,)):
        with pytest.raises(ga.GraphAttentionError, match=r"transformer\.h\.0\.attn"):
            ga.patch_model(MODELS["GPT-2"](), ga.NeuTRENOConfig(layers=layers))
    ga.patch_model(MODELS["GPT-2"](), ga.NeuTRENOConfig(layers=(0, 1)))


class Twice(BertPreTrainedModel):
    """One stack, called twice in a forward."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.bert = BertModel(config)

    def forward(self, first: Tensor, second: Tensor, **kwargs: Any) -> Tensor:
        self.bert(first, **kwargs)
        return self.bert(second, **kwargs)[0]


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_each_call_of_a_stack_has_its_own_first_values(config: ga.VariantConfig) -> None:
    model = Twice(BertConfig(**ROWS["BERT"].settings)).eval()
    spread(model)
    patch(model, config, "auto", False, None)
    one, two, three = torch.randint(3, 50, (3, 2, 7))
    assert torch.equal(model(one, three), model(two, three))


def test_layers_that_regroup_their_tokens_are_refused() -> None:
    """Swin shifts its windows: row i of V_0 is another token's."""
    with pytest.raises(ga.GraphAttentionError, match="SwinAttention, whose tokens may be others"):
        ga.patch_model(models.build("swin"), NEUTRENO, check=True)


def test_a_first_layer_that_is_dropped_is_refused() -> None:
    second = patched("BART", NEUTRENO).model.encoder.layers[1]
    with pytest.raises(ga.GraphAttentionError, match="layerdrop"):
        second(torch.randn(2, 5, 32), attention_mask=None, graph_attn_first={})
    other = {"model.encoder.layers.*.self_attn": FirstValues(*torch.randn(2, 2, HEADS, 3, 8), True)}
    with pytest.raises(ga.GraphAttentionError, match="layers of one shape"):
        second(torch.randn(2, 5, 32), attention_mask=None, graph_attn_first=other)


def test_where_no_values_travel_it_is_refused() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8), 2)
    with pytest.raises(ga.GraphAttentionError, match="reads one layer alone"):
        ga.patch_model(encoder, NEUTRENO)
    query = torch.randn(1, 2, 3, 4)
    with pytest.raises(ga.GraphAttentionError, match="values of the first layer"):
        ga.attention(query, query, query, NEUTRENO.build(2))
    model = patched("BERT", NEUTRENO)
    with pytest.raises(ga.GraphAttentionError, match="no matrix H"):
        model(**inputs(model), output_attentions=True)
