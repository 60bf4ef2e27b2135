"""Filters of tokens, which act after attention: ContraNorm, FeatScale."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import TOKEN_CASES, attention
from edges import leading
from peft import LoraConfig, get_peft_model
from tiny import HEADS, LAYERS, MODELS, ROWS, build, gradients, inputs
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from transformers import PreTrainedModel

import hf_graphattn as ga
from hf_graphattn.model.parallel import share_heads


@dataclass(frozen=True)
class Layer:
    """What a layer's modules are called: those of queries, keys and values, of the attention's
    projection, of the MLP; the layer norms before, after attention, and after the MLP."""

    states: str
    out: str
    mlp: str
    first: str | None
    norm: str
    last: str | None


_BERT = Layer(
    "attention.self.query attention.self.key attention.self.value",
    "attention.output.dense",
    "intermediate output.dense",
    None,
    "attention.output.LayerNorm",
    "output.LayerNorm",
)
_VIT = Layer(
    "attention.q_proj attention.k_proj attention.v_proj",
    "attention.o_proj",
    "mlp",
    "layernorm_before",
    "layernorm_after",
    None,
)
LAYERS_OF = {
    "ALBERT": Layer(
        "attention.query attention.key attention.value",
        "attention.dense",
        "ffn activation ffn_output",
        None,
        "attention.LayerNorm",
        "full_layer_layer_norm",
    ),
    "BERT": _BERT,
    "DeiT": _VIT,
    "DistilBERT": Layer(
        "attention.q_lin attention.k_lin attention.v_lin",
        "attention.out_lin",
        "ffn",
        None,
        "sa_layer_norm",
        "output_layer_norm",
    ),
    "ELECTRA": _BERT,
    "GPT-2": Layer("attn.c_attn", "attn.c_proj", "mlp", "ln_1", "ln_2", None),
    "RoBERTa": _BERT,
    "ViT": _VIT,
}
BLOCKS = {
    "ALBERT": "encoder.albert_layer_groups.0.albert_layers",
    "DistilBERT": "transformer.layer",
    "GPT-2": "h",
    "DeiT": "layers",
    "ViT": "layers",
}


def seen_by(batch: dict[str, Any], length: int, causal: bool) -> Tensor:
    """Which tokens each may see, (B, N, N)."""
    seen = torch.ones(3, length, length, dtype=torch.bool)
    if "attention_mask" in batch:
        seen &= batch["attention_mask"].bool()[:, None]
    return seen.tril() if causal else seen


def layer_of(
    names: Layer, layer: nn.Module, x: Tensor, seen: Tensor, variant: str, scalars: dict[str, Any]
) -> Tensor:
    """One layer, from the tokens, (B, N, C), by its modules."""

    def run(paths: str | None, x: Tensor) -> Tensor:
        return reduce(lambda x, path: attrgetter(path)(layer)(x), (paths or "").split(), x)

    def act(at: str, x: Tensor) -> Tensor:
        if variant != at:
            return x
        formula = TOKEN_CASES[variant].formula
        return torch.stack([formula(*each, scalars) for each in zip(x, seen, strict=True)])

    before = run(names.first, x)
    states = torch.cat([run(path, before) for path in names.states.split()], -1)
    heads = [s.unflatten(-1, (HEADS, -1)).transpose(1, 2) for s in states.chunk(3, -1)]
    matrix = attention(*heads[:2], heads[0].shape[-1] ** -0.5, seen[:, None], False)
    added = act("featscale", run(names.out, (matrix @ heads[2]).transpose(1, 2).flatten(2)))
    if names.first:
        x = x + added
        return x + run(names.mlp, run(names.norm, act("contranorm", x)))
    x = run(names.norm, act("contranorm", x + added))
    return run(names.last, x + run(names.mlp, x))


def reference(
    architecture: str, model: Any, batch: dict[str, Any], variant: str, scalars: list[Any]
) -> Tensor:
    """The last hidden states of a plain model whose layers are made here, (B, N, C)."""
    x = model(**batch, output_hidden_states=True).hidden_states[0]
    seen = seen_by(batch, x.shape[1], causal=architecture == "GPT-2")
    blocks = [*model.get_submodule(BLOCKS.get(architecture, "encoder.layer"))]
    for layer, own in zip(blocks * (LAYERS // len(blocks)), scalars, strict=False):
        x = layer_of(LAYERS_OF[architecture], layer, x, seen, variant, own)
    final = {"GPT-2": "ln_f", "ViT": "layernorm", "DeiT": "layernorm"}.get(architecture)
    return model.get_submodule(final)(x) if final else x


CONFIGS = {name: case.config for name, case in TOKEN_CASES.items()}
SOME = ("BERT", "GPT-2", "ViT")


def patched(architecture: str, variant: str, **settings: Any) -> PreTrainedModel:
    """A base model in float64, every scalar another."""
    model = ga.patch_model(build(architecture, "Model", **settings), CONFIGS[variant])
    for _, scalar in ga.filter_parameters(model):
        scalar.data = torch.rand_like(scalar) - 0.3
    return model.double()


def batch_of(model: PreTrainedModel, padding: str = "none", length: int = 11) -> dict[str, Any]:
    batch = inputs(model, padding, length)
    return {name: x.double() if x.is_floating_point() else x for name, x in batch.items()}


@pytest.mark.parametrize("variant", CONFIGS)
@pytest.mark.parametrize(
    ("architecture", "padding"), [(a, side) for a in LAYERS_OF for side in ROWS[a].padding]
)
def test_it_is_the_formula_with_every_gradient(
    architecture: str, padding: str, variant: str
) -> None:
    model = patched(architecture, variant)
    batch = batch_of(model, padding)
    found = gradients(model, model(**batch)[0], batch)
    learned = dict(ga.filter_parameters(model))
    names = list(ga.graph_filters(model))
    ga.unpatch_model(model)
    own = {n: nn.Parameter(scalar.detach().clone()) for n, scalar in learned.items()}
    scalars = [
        {s: own[f"{name}.graph_filter.{s}"] for s in CONFIGS[variant].scalars} for name in names
    ]
    out = reference(architecture, model, batch, variant, scalars * (LAYERS // len(scalars)))
    expected = gradients(model, out, batch)
    expected |= {n: scalar.grad for n, scalar in own.items()}
    assert found.keys() == expected.keys()
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("variant", CONFIGS)
@pytest.mark.parametrize("architecture", SOME)
def test_gradient_checkpointing_of_several_forwards_at_once(
    architecture: str, variant: str
) -> None:
    """What is computed again must leave out the padding of its own batch."""
    model = patched(architecture, variant).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    setattr(model.config, ROWS[architecture].dropout, 0.0)
    sides = ("right", "none") if "right" in ROWS[architecture].padding else ("none", "none")
    batches = [batch_of(model, side) for side in sides]

    def both() -> dict[str, Tensor]:
        model.zero_grad()
        sum(model(**batch)[0].pow(2).sum() for batch in batches).backward()
        return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    expected = both()
    for reentrant in (False, True):
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model.enable_input_require_grads()
        torch.testing.assert_close(both(), expected)


@pytest.mark.parametrize("variant", CONFIGS)
def test_threads_have_masks_of_their_own(variant: str) -> None:
    model = patched("BERT", variant)
    batches = [batch_of(model, side) for side in ("left", "none", "right", "full")] * 4
    expected = [model(**batch)[0] for batch in batches]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda batch: model(**batch)[0], batches))
    assert all(map(torch.equal, found, expected))
    assert all(out.isfinite().all() for out in found)


@pytest.mark.parametrize("variant", CONFIGS)
@pytest.mark.parametrize("architecture", LAYERS_OF)
def test_it_is_saved_copied_and_taken_out(architecture: str, variant: str, tmp_path: Path) -> None:
    model = build(architecture)
    batch = inputs(model, ROWS[architecture].padding[-1])
    plain, hooks = model(**batch)[0], [len(m._forward_hooks) for m in model.modules()]
    ga.patch_model(model, TOKEN_CASES[variant].neutral)
    torch.testing.assert_close(model(**batch)[0], plain)
    ga.patch_model(ga.unpatch_model(model), CONFIGS[variant])
    out = model(**batch)[0]
    assert not torch.allclose(out, plain, atol=1e-4)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(**batch)[0], out)
    with torch.no_grad():
        for _, scalar in ga.filter_parameters(model):
            scalar.add_(0.1 * torch.randn_like(scalar))
    model.save_pretrained(tmp_path)
    loaded = ga.from_pretrained(tmp_path)
    assert torch.equal(loaded(**batch)[0], model(**batch)[0])
    ga.save_filters(model, tmp_path)
    ga.unpatch_model(model)
    assert torch.equal(model(**batch)[0], plain)
    assert [len(m._forward_hooks) for m in model.modules()] == hooks
    assert not any(m._forward_pre_hooks for m in model.modules())
    assert torch.equal(ga.load_filters(model, tmp_path)(**batch)[0], loaded(**batch)[0])


@pytest.mark.parametrize("variant", CONFIGS)
@pytest.mark.parametrize("architecture", SOME)
def test_the_attention_stays_plain_by_every_backend(architecture: str, variant: str) -> None:
    model = build(architecture)
    batch = inputs(model, ROWS[architecture].padding[-1])
    model.set_attn_implementation("eager")
    plain = model(**batch, output_attentions=True).attentions[0]
    outputs = []
    for backend in ("sdpa", "eager", "delegate", "auto"):
        ga.patch_model(model, CONFIGS[variant], backend=backend)
        found = model(**batch, output_attentions=True)
        torch.testing.assert_close(found.attentions[0], plain)
        outputs += [found[0], model(**batch)[0]]
        ga.unpatch_model(model)
    for out in outputs[1:]:
        torch.testing.assert_close(out, outputs[0], rtol=1e-4, atol=1e-4)
    assert ga.check(model, CONFIGS[variant], **batch).passed


@pytest.mark.parametrize("variant", CONFIGS)
@pytest.mark.parametrize("architecture", leading(2, SOME))
def test_it_is_compiled_whole_for_all_lengths(architecture: str, variant: str) -> None:
    torch._dynamo.reset()
    model, counter = patched(architecture, variant, use_cache=False), CompileCounter()
    whole = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    for length in (11, 12, 17):
        batch = batch_of(model, length=length)
        with torch.no_grad():
            torch.testing.assert_close(whole(**batch)[0], model(**batch)[0])
    assert counter.frame_count == 1


@pytest.mark.parametrize("variant", CONFIGS)
@pytest.mark.parametrize("architecture", ["ALBERT", *SOME])
def test_an_adapter_on_every_linear_module_changes_nothing_but_them(
    architecture: str, variant: str, tmp_path: Path
) -> None:
    """A filter of what an adapted module returns must see what the adapter adds."""
    model = ga.patch_model(build(architecture, "Model"), CONFIGS[variant])
    batch, first = inputs(model), copy.deepcopy(model)
    settings = LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    settings.modules_to_save = ga.peft_modules()
    adapted = get_peft_model(model, settings).eval()
    before = adapted(**batch)[0]
    with torch.no_grad():
        for _, scalar in ga.filter_parameters(adapted):
            scalar.add_(0.1)
    out = adapted(**batch)[0]
    assert not torch.allclose(out, before, atol=1e-4)
    adapted.save_pretrained(tmp_path)
    assert torch.equal(ga.load_peft(first, tmp_path)(**batch)[0], out)
    torch.testing.assert_close(adapted.merge_and_unload()(**batch)[0], out, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("variant", CONFIGS)
def test_tokens_of_half_precision(variant: str) -> None:
    model = ga.patch_model(build("BERT"), CONFIGS[variant])
    batch = inputs(model, "right")
    expected = model(**batch)[0]
    found = model.bfloat16()(**batch)[0]
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("variant", CONFIGS)
def test_layers_report_and_card(variant: str) -> None:
    config = type(CONFIGS[variant])(trainable=CONFIGS[variant].scalars, layers=(-1,))
    model = ga.patch_model(build("BERT"), config)
    model(**inputs(model, "right"))
    plain, filtered = ga.report(model).rows
    assert (plain.variant, filtered.variant) == ("plain", variant)
    assert {n: len(scalar) for n, scalar in filtered.scalars.items()} == dict.fromkeys(
        config.scalars, model.config.hidden_size
    )
    text = str(ga.model_card(model, "someone/some"))
    assert "whose layers filter their tokens after self-attention" in text
    assert "H V" not in text
    assert "one value for each channel" in text


@pytest.mark.parametrize("variant", CONFIGS)
def test_generation_without_a_cache_and_no_other(variant: str) -> None:
    model = ga.patch_model(build("GPT-2", tie_word_embeddings=False), CONFIGS[variant])
    model.generation_config.update(eos_token_id=None, pad_token_id=0)
    batch = inputs(model, "left")
    given = {**batch, "do_sample": False, "max_new_tokens": 4}
    ids = model.generate(**given, use_cache=False)
    mask = torch.cat([batch["attention_mask"], torch.ones(3, 4, dtype=torch.long)], 1)
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    logits = model(ids, attention_mask=mask, position_ids=positions).logits
    assert torch.equal(logits[:, -5:-1].argmax(-1), ids[:, -4:])
    for cache in ({}, {"cache_implementation": "static"}):
        with pytest.raises(ga.GraphAttentionError, match=rf"'{variant}' .*use_cache=False"):
            model.generate(**given, **cache)


@pytest.mark.parametrize("variant", CONFIGS)
@pytest.mark.parametrize("architecture", [name for name in ROWS if name not in LAYERS_OF])
def test_where_its_place_is_not_known_it_is_refused(architecture: str, variant: str) -> None:
    model = MODELS[architecture]()
    before = {name: vars(module).copy() for name, module in model.named_modules()}
    known = ", ".join(LAYERS_OF)
    with pytest.raises(ga.GraphAttentionError, match=rf"'{variant}' acts at .* known for {known}"):
        ga.patch_model(model, CONFIGS[variant])
    assert before == {name: vars(module) for name, module in model.named_modules()}


@pytest.mark.parametrize("variant", CONFIGS)
def test_what_filters_attention_alone_refuses_it(variant: str) -> None:
    config, query = CONFIGS[variant], torch.randn(1, 2, 3, 4)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8), 2)
    crossed = build("GPT-2", add_cross_attention=True)
    patched, batch = ga.patch_model(build("BERT"), config), inputs(build("BERT"))
    heads = torch.ones(3, HEADS, 11, 11, dtype=torch.bool)
    for words, call in {
        "MultiheadAttention": lambda: ga.patch_model(encoder, config),
        "beside cross-attention": lambda: ga.patch_model(crossed, config),
        "in MultiheadAttention": lambda: ga.MultiheadAttention(8, 2, graph_attn=config),
        r"in ga\.attention": lambda: ga.attention(query, query, query, config.build(2)),
        "processes share": lambda: share_heads(config.build(2), None),
        "diagnosed": lambda: ga.diagnose(patched, batch),
        "one for all heads": lambda: patched(**{**batch, "attention_mask": heads}),
        "was not reached": lambda: patched.bert.encoder.layer[0].attention.output(
            torch.randn(1, 3, 32), torch.randn(1, 3, 32)
        ),
    }.items():
        with pytest.raises(ga.GraphAttentionError, match=words):
            call()
    patched(**batch)  # after an error too
