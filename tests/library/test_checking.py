"""Models of architectures that are in no table: found by rule, checked, patched, saved, loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from edges import product
from refusals import refused, untouched
from tiny import MODELS, inputs
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3ForCausalLM,
    DiffLlamaForCausalLM,
    Gemma2ForCausalLM,
    GptOssForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    SiglipVisionConfig,
    SiglipVisionModel,
    XGLMConfig,
    XGLMModel,
)
from transformers.models.llama import modeling_llama
from transformers.models.qwen2 import modeling_qwen2
from zoo import models
from zoo.batches import inputs as zoo_inputs

import hf_graphattn as ga
import hf_graphattn.architectures as architectures
from hf_graphattn.architectures import ARCHITECTURES, find
from hf_graphattn.variants.gfsa import GFSAFilter

GFSA = ga.GFSAConfig(order=4, w_0=-0.1, w_K=0.3)
# Qwen2 is like Llama; Gemma 2 caps its scores, GPT-OSS has sinks; DeepSeek-V3's values are narrower
# than its keys; DiffLlama changes the values that its cache keeps.
TYPES = {
    "qwen2": Qwen2ForCausalLM,
    "gemma2": Gemma2ForCausalLM,
    "gpt_oss": GptOssForCausalLM,
    "deepseek_v3": DeepseekV3ForCausalLM,
    "diffllama": DiffLlamaForCausalLM,
}
CACHED = ("qwen2", "gemma2", "gpt_oss")
NO_CACHE = {"use_cache": False}


@pytest.fixture(autouse=True)
def nothing_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of listed types need no check: test_verified.py."""
    monkeypatch.setattr(architectures, "_verified", dict)


def unverified(model_type: str) -> tuple[PreTrainedModel, dict[str, Tensor]]:
    model = models.build(model_type)
    assert type(model) is TYPES[model_type]
    model.set_experts_implementation("eager")  # the others have no float64
    ids = torch.randint(3, model.config.vocab_size, (3, 9))
    mask = torch.ones_like(ids)
    mask[0, -3:] = 0
    return model, {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize(
    ("architecture", "backend"), product(MODELS, ["auto", "eager", "delegate"])
)
def test_the_verified_ones_pass_the_check(architecture: str, backend: str) -> None:
    model = MODELS[architecture]()
    with untouched(model):
        found = ga.check(model, backend=backend, **inputs(model))
    assert found.passed, found
    assert found.rows[0].error < 1e-6
    assert "checked" not in ga.patch_model(model, GFSA, backend=backend).config.graph_attn


@pytest.mark.parametrize("model_type", TYPES)
def test_another_architecture_is_patched_after_a_check(model_type: str, tmp_path: Path) -> None:
    model, batch = unverified(model_type)
    plain = model(**batch, **NO_CACHE)[0]
    with untouched(model, batch), refused(type(model).__name__, "not verified", "check=batch"):
        ga.patch_model(model, GFSA)
    ga.patch_model(model, GFSA, check=batch)
    filtered = model(**batch, **NO_CACHE)[0]
    assert (filtered - plain).abs().max() > 1e-3

    model.save_pretrained(tmp_path)
    delegates = f"delegate for arguments that only {type(layer_of(model)).__name__} knows"
    assert delegates in str(ga.report(model))
    loaded = ga.from_pretrained(tmp_path)  # which remembers the check
    assert torch.equal(loaded(**batch, **NO_CACHE)[0], filtered)
    assert loaded.config.graph_attn == model.config.graph_attn
    ga.unpatch_model(model)
    assert torch.equal(model(**batch, **NO_CACHE)[0], plain)


def layer_of(model: PreTrainedModel) -> nn.Module:
    return find(model).self_attention[0].module


@pytest.mark.parametrize("model_type", TYPES)
def test_what_it_generates_with_a_cache_is_what_it_generates_without(model_type: str) -> None:
    model, batch = unverified(model_type)
    batch = {"input_ids": batch["input_ids"]}
    ga.patch_model(model.double(), GFSA, check=True)
    settings: dict[str, Any] = {"do_sample": False, "max_new_tokens": 6, "min_new_tokens": 6}
    without = model.generate(**batch, **settings, use_cache=False)
    if model_type in CACHED:
        assert torch.equal(model.generate(**batch, **settings), without)
    else:
        with refused("changes the values that its cache keeps", "use_cache=False"):
            model.generate(**batch, **settings)


@pytest.mark.parametrize("model_type", TYPES)
def test_every_gradient_is_that_of_the_architectures_own_attention(model_type: str) -> None:
    """float64, on random inputs: the fused passes against A by its eager function, applied."""
    grads = []
    for backend in ("auto", "delegate"):
        torch.manual_seed(0)
        model, batch = unverified(model_type)
        ga.patch_model(model.double(), GFSA, backend=backend, check=batch)
        logits = model(**batch, **NO_CACHE)[0]
        weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1)).double()
        (logits * weights)[batch["attention_mask"].bool()].sum().backward()
        grads.append([p.grad for p in model.parameters() if p.grad is not None])
    largest = max(float(each.abs().max()) for each in grads[1])
    assert len(grads[0]) == len(grads[1]) > 10
    for one, other in zip(*grads, strict=True):
        assert (one - other).abs().max() <= 1e-6 * largest


@pytest.mark.parametrize("model_type", ["gemma2", "gpt_oss"])
def test_what_fused_passes_cannot_compute_is_delegated_or_refused(model_type: str) -> None:
    model, batch = unverified(model_type)
    for config, backend in ((GFSA, "sdpa"), (ga.PLaTConfig(), "auto")):
        with (
            untouched(model, batch),
            refused("only the architecture's eager one reads", "delegate"),
        ):
            ga.patch_model(model, config, backend=backend, check=batch)
    ga.patch_model(model, GFSA, check=batch)
    matrices = model(**batch, output_attentions=True).attentions
    assert matrices[0].shape == (3, model.config.num_attention_heads, 9, 9)


class Doubles(modeling_qwen2.Qwen2Attention):
    """It attends, and then attends to what it has attended to: no filter can know."""

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        kwargs["past_key_values"] = None
        once, weights = super().forward(hidden_states, *args, **kwargs)
        if self.config._attn_implementation == "eager":
            return super().forward(once, *args, **kwargs)
        return once, weights


class OfItsOwn(modeling_llama.LlamaAttention):
    """A subclass of a verified class, whose forward nobody has verified."""

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        out, weights = super().forward(hidden_states, *args, **kwargs)
        return 2 * out, weights


def test_a_subclass_with_a_forward_of_its_own_is_not_verified() -> None:
    model = MODELS["Llama"]()
    for layer in model.model.layers:
        layer.self_attn.__class__ = OfItsOwn
    with untouched(model), refused("not verified", "OfItsOwn"):
        ga.patch_model(model, GFSA)
    ga.patch_model(model, GFSA, check=True)


def test_cross_attention_is_found_by_every_name_that_it_has() -> None:
    """Also where it has as many queries as keys, so that A would have a square."""
    for model_type, word in (("pix2struct", "encoder_decoder"), ("sam", "token_to_image")):
        rows = ga.supported(models.build(model_type)).rows
        kinds = {row.kind for row in rows if word in row.module}
        assert kinds == {"cross"}


def test_a_model_that_computes_otherwise_is_refused() -> None:
    model, batch = unverified("qwen2")
    for layer in model.model.layers:
        layer.self_attn.__class__ = Doubles
    found = ga.check(model, **batch)
    assert not found.passed
    assert "NO" in str(found)
    with untouched(model, batch), refused("cannot be patched", "plain", "NO", "delegate"):
        ga.patch_model(model, GFSA, check=batch)


def test_a_filter_without_an_effect_is_told() -> None:
    model, batch = unverified("qwen2")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
    found = ga.check(model, **batch)
    assert [row.name for row in found.rows if not row.passed] == ["effect"]


def test_a_check_holds_for_its_version_and_backend(tmp_path: Path) -> None:
    model, batch = unverified("qwen2")
    ga.patch_model(model, GFSA, check=True).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    saved = json.loads(file.read_text())
    saved["graph_attn"]["checked"]["transformers"] = "5.0.0"
    file.write_text(json.dumps(saved))
    with refused("not verified", "5.0.0", "check=batch"):
        ga.from_pretrained(tmp_path)
    with refused("not verified", "'backend': 'eager'"):
        ga.from_pretrained(tmp_path, backend="eager")
    loaded = ga.from_pretrained(tmp_path, check=batch)
    assert torch.equal(loaded(**batch)[0], model(**batch)[0])
    trusted = AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True, check=True)
    assert torch.equal(trusted(**batch)[0], model(**batch)[0])


def test_filters_of_a_file_are_checked_too(tmp_path: Path) -> None:
    model, batch = unverified("qwen2")
    ga.save_filters(ga.patch_model(model, GFSA, check=True), tmp_path)
    filtered = model(**batch)[0]
    with refused("not verified"):
        ga.load_filters(ga.unpatch_model(model), tmp_path)
    assert torch.equal(ga.load_filters(model, tmp_path, check=True)(**batch)[0], filtered)


def test_inputs_are_made_for_text_and_images_alone() -> None:
    for model_type in ("clip_vision_model", "mbart"):
        ga.patch_model(models.build(model_type), GFSA, check=True)
    speech = models.build("wav2vec2")
    with refused("check", "True", "input_values", "check=batch"):
        ga.patch_model(speech, GFSA, check=True)
    ga.patch_model(speech, GFSA, check=zoo_inputs(speech))


def test_supported_says_which_module_can_have_a_filter() -> None:
    found = ga.supported(MODELS["T5"]())
    kinds = {row.module.rpartition(".")[2]: (row.kind, row.says) for row in found.rows}
    assert kinds["SelfAttention"] == ("self", "yes: verified")
    assert kinds["EncDecAttention"] == ("cross", "no: stays plain")
    assert "4 self-attention modules in reach" in str(found)
    assert "after a check" in str(ga.supported(models.build("qwen2")))
    xglm = XGLMConfig(vocab_size=9, d_model=8, ffn_dim=8, num_layers=1, attention_heads=2)
    (row,) = ga.supported(XGLMModel(xglm)).rows
    assert (row.kind, row.says) == (
        "own",
        "no: it computes attention by itself",
    )


def test_attention_that_stays_plain_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    settings = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = SiglipVisionConfig(**settings, intermediate_size=48, image_size=12, patch_size=4)
    ga.patch_model(SiglipVisionModel(config).eval(), GFSA, check=True)
    assert "SiglipMultiheadAttentionPoolingHead computes attention by itself" in caplog.text


def test_what_is_inside_or_around_attention_is_not_out_of_reach() -> None:
    """As `BertAttention`, which holds `BertSelfAttention`."""
    model = MODELS["BERT"]()
    around = model.bert.encoder.layer[0].attention
    around.self.inner = type("InnerAttention", (nn.Linear,), {})(2, 2)
    around.beside = type("BesideAttention", (nn.Linear,), {})(2, 2)
    assert set(find(model).why_plain) == {"BesideAttention"}


def test_the_table_is_found_by_the_rule() -> None:
    """Every class of it, and of each model exactly its self-attention."""
    found = set()
    for architecture in MODELS:
        modules = [each for each in find(MODELS[architecture]()).attention if each.is_verified]
        found |= {type(each.module).__name__ for each in modules}
        assert all(each.num_heads == 4 for each in modules)
    assert found == {row.attention for row in ARCHITECTURES}


def test_cross_attention_is_refused_where_its_name_does_not_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With as many tokens as the decoder's, so that A is square."""
    monkeypatch.setattr(architectures, "CROSS", ())
    model = ga.patch_model(MODELS["BART"](), GFSA)
    assert "model.decoder.layers.0.encoder_attn" in ga.graph_filters(model)
    ids = inputs(model)["input_ids"]
    with pytest.raises(ga.GraphAttentionError, match=r"BartAttention .*key_value_states"):
        model(input_ids=ids, decoder_input_ids=ids)


def test_what_auto_takes_for_larger_batches_is_compared_too() -> None:
    """EoMT's masks stay float32 in a float64 model, which torch's fused passes would misread."""
    model = models.build("eomt")
    found = {row.name: row.passed for row in ga.check(model, **zoo_inputs(model)).rows}
    names = ("plain", "filtered", "fused", "effect", "reached")
    assert found == dict.fromkeys(names, True)
    capped = ga.check(models.build("gemma2"), **zoo_inputs(models.build("gemma2")))
    assert "fused" not in {row.name for row in capped.rows}  # refused there


# What a check needs of its batch and of its filters, so that nothing stays unseen.


def test_a_batch_that_does_not_reach_every_filter_does_not_pass() -> None:
    model = models.build("llava")
    batch = zoo_inputs(model)
    text = {name: batch[name] for name in ("input_ids", "attention_mask")}
    text["input_ids"] = text["input_ids"].clamp_min(model.config.image_token_id + 1)
    found = ga.check(model, **text)
    assert [row.name for row in found.rows if not row.passed] == ["reached"]
    with (
        untouched(model, batch),
        refused("does not reach 2 filters, in CLIPAttention", "all that the model reads"),
    ):
        ga.patch_model(model, GFSA, check=text)
    assert ga.check(model, **batch).passed
    assert ga.check(model, ga.GFSAConfig(w_K=0.3, layers=(-1, -2)), **text).passed


def test_a_model_that_keeps_what_it_made_of_its_texts_does_not_pass() -> None:
    """Its filters would not act on what it keeps; after saving and loading they would."""
    model = models.build("omdet-turbo")
    batch = zoo_inputs(model)
    with refused("does not reach 2 filters, in CLIPAttention", "earlier inputs fails"):
        ga.patch_model(model, GFSA, check=batch)


def test_each_head_has_scalars_of_its_own_in_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    forward = GFSAFilter.forward

    def kept(self: GFSAFilter, *args: Any) -> Tensor:
        seen.append([each.detach() for each in self.parameters()])
        return forward(self, *args)

    monkeypatch.setattr(GFSAFilter, "forward", kept)
    model = models.build("qwen2")
    assert ga.check(model, **zoo_inputs(model)).passed
    filtered = [torch.stack(each) for each in seen if len(each) == 3]
    assert filtered
    for each in filtered:
        assert each.unique().numel() == 3 * model.config.num_attention_heads


def test_keys_that_layers_share_are_without_a_cache_and_with_all_queries_alone() -> None:
    model = models.build("gemma4_text, shared keys")
    batch = {"input_ids": zoo_inputs(model)["input_ids"]}
    settings = {"do_sample": False, "min_new_tokens": 3, "max_new_tokens": 3}
    ga.patch_model(model, GFSA, check=zoo_inputs(model))
    with refused("DummyLayer", "use_cache=False"):
        model.generate(**batch, **settings)
    with refused("1 queries and 11 keys", "output_hidden_states=True"):
        model.generate(**batch, **settings, use_cache=False)
    said = {"use_cache": False, "output_hidden_states": True, "return_dict_in_generate": True}
    out = model.generate(**batch, **settings, **said, output_logits=True)
    whole = model(out.sequences, use_cache=False).logits[:, -4:-1]
    torch.testing.assert_close(torch.stack(out.logits, 1), whole, rtol=1e-4, atol=1e-4)
