"""What `diagnose` is given: batches of every decoder, configs that record, PEFT's models."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_code
import tiny_speech
import torch
from diagnosing import QUICK, assert_same, assert_unchanged, state, whole
from tiny import LAYERS, build
from transformers import AutoTokenizer, DataCollatorForSeq2Seq, Wav2Vec2ForCTC
from zoo import models

import hf_graphattn as ga
from hf_graphattn.backends import AttentionInputs, make
from hf_graphattn.diagnostics import diagnose, measure
from hf_graphattn.diagnostics.collect import PLAIN


def test_the_collator_s_labels_tell_the_decoder_s_padding(tmp_path: Path) -> None:
    """transformers' own collator adds decoder_input_ids, but no mask."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_code.save_t5(tmp_path))
    model = build("T5", vocab_size=len(tokenizer))
    rows = [tokenizer(text) for text in ("Return it.", "Raise an error if the list is empty.")]
    features = [{**row, "labels": row["input_ids"]} for row in rows]
    batch = DataCollatorForSeq2Seq(tokenizer, model=model, return_tensors="pt")(features)
    assert "decoder_input_ids" in batch
    assert "decoder_attention_mask" not in batch
    tokens = sum(len(row["input_ids"]) for row in rows)
    assert tokens < batch["labels"].numel()
    found = diagnose(model, batch, **QUICK)
    assert [part.tokens for part in found.parts] == [tokens, tokens]
    other = batch["decoder_input_ids"].where(batch["labels"] != -100, 7)
    assert_same(found, diagnose(model, {**batch, "decoder_input_ids": other}, **QUICK))


@pytest.mark.parametrize("labels", [None, [0, 1, 0], [[0.0] * 9] * 3])
@pytest.mark.parametrize("architecture", ["BART", "PLBART", "T5"])
def test_a_decoder_that_reads_the_encoder_s_text(architecture: str, labels: Any) -> None:
    """Sequence classification: the decoder's ids are input_ids shifted, so is its mask theirs."""
    model = build(architecture, head="ForSequenceClassification", num_labels=9)
    ids = torch.randint(3, 50, (3, 9))
    mask = torch.ones_like(ids)
    ids[:, -1] = model.config.eos_token_id
    ids[0, -4:], mask[0, -4:] = model.config.pad_token_id, 0
    ids[0, -5] = model.config.eos_token_id
    batch = {"input_ids": ids, "attention_mask": mask}
    if labels is not None:
        batch["labels"] = torch.tensor(labels)
    found = diagnose(model, batch, **QUICK)
    assert [part.tokens for part in found.parts] == [23, 23]
    short = {"input_ids": ids[:1, :5], "attention_mask": mask[:1, :5]}
    one = diagnose(model, {name: tensor[:1] for name, tensor in batch.items()}, **QUICK)
    assert_same(one, diagnose(model, short, **QUICK), 1e-5)


def test_the_frames_of_padded_sound_are_left_out() -> None:
    """The mask is one of samples, of which the convolutions make fewer frames."""
    torch.manual_seed(0)
    known = {"vocab_size": 9, "pad_token_id": 0}
    model = ga.patch_model(Wav2Vec2ForCTC(tiny_speech.config(**known)), ga.GFSAConfig(w_K=0.3))
    sound, mask = torch.randn(2, 200), torch.ones(2, 200, dtype=torch.long)
    mask[1, 100:], sound[1, 100:] = 0, 0.0
    found = diagnose(model, {"input_values": sound, "attention_mask": mask}, **QUICK)
    alone = [{"input_values": sound[:1]}, {"input_values": sound[1:, :100]}]
    # Of 200 samples 8 apart 23 frames, of 100 samples 11.
    assert [part.tokens for part in found.parts] == [23 + 11]
    assert_same(found, diagnose(model, alone, **QUICK), 1e-4)


def test_padding_in_front_of_a_decoder_without_a_mask_is_refused() -> None:
    model = build("BART")
    ids = torch.randint(3, 50, (1, 6))
    batch = {"input_ids": ids, "attention_mask": torch.tensor([[0, 1, 1, 1, 1, 1]])}
    with pytest.raises(ga.GraphAttentionError, match=r"by attention_mask.*Pad on the right"):
        diagnose(model, batch)
    batch = {"input_ids": ids, "labels": ids.where(ids != ids[:, :1], -100)}
    with pytest.raises(ga.GraphAttentionError, match=r"by labels.*give decoder_attention_mask"):
        diagnose(model, batch)


@pytest.mark.parametrize("patched", [False, True])
@pytest.mark.parametrize("architecture", ["BERT", "GPT-2", "T5"])
def test_a_config_that_asks_for_attentions_changes_nothing(
    architecture: str, patched: bool
) -> None:
    model = build(architecture)
    batch = whole(model)
    asking = copy.deepcopy(model)
    asking.set_attn_implementation("eager")  # else the config refuses
    for module in asking.modules():
        if hasattr(module, "config"):
            module.config.output_attentions = True
    if patched:
        for each in (model, asking):
            ga.patch_model(each, ga.GFSAConfig(w_K=0.3))
    assert_same(diagnose(asking, batch, **QUICK), diagnose(model, batch, **QUICK))
    assert asking.config.output_attentions


def test_a_plain_model_that_peft_wraps_is_measured_with_its_adapter() -> None:
    peft = pytest.importorskip("peft")
    model = build("BERT")
    batch = whole(model)
    config = peft.LoraConfig(target_modules=["query", "value"], init_lora_weights=False)
    wrapped = peft.get_peft_model(model, config)
    before = state(wrapped, batch)
    found = diagnose(wrapped, batch, **QUICK)
    assert_unchanged(before, wrapped, batch)
    assert found.parts[0].variants == ("plain",) * LAYERS
    assert_same(found, diagnose(wrapped.merge_and_unload(), batch, **QUICK), 1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("padded", [False, True])
def test_attention_that_only_the_architecture_knows(padded: bool, dtype: torch.dtype) -> None:
    """Gemma 2 caps its scores: every sequence has the entropy of its own, capped attention."""
    model: Any = models.build("gemma2").to(dtype).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.mul_(30)  # so that the cap is felt
    ids = torch.randint(3, model.config.vocab_size, (3, 9))
    mask = torch.ones_like(ids)
    mask[1:, -3 * padded :] = 0 if padded else 1
    found = diagnose(model, {"input_ids": ids, "attention_mask": mask}, **QUICK).to_pandas()
    entropy = found.query("statistic == 'entropy'").groupby("layer")["mean"].mean()
    model.set_attn_implementation("eager")
    every = []
    for row, length in zip(ids, mask.sum(-1), strict=True):
        matrices = model(row[None, :length], output_attentions=True, use_cache=False).attentions
        rows = (-(a.double().xlogy(a.double())).sum(-1).mean() for a in matrices)
        every.append(torch.stack(list(rows)))
    expected = torch.stack(every).mean(0).detach()
    assert expected.min() > 0.01
    np.testing.assert_allclose(entropy, expected, rtol=1e-4 if dtype == torch.float32 else 1e-9)


def test_a_name_that_the_model_does_not_take() -> None:
    model = build("BERT")
    with pytest.raises(ga.GraphAttentionError, match="is 'ids'; allowed: input_ids,"):
        diagnose(model, {**whole(model), "ids": torch.ones(3, 9)}, **QUICK)
    assert not ga.is_patched(model)


def test_an_energy_that_is_kept_does_not_fall() -> None:
    """A that permutes the tokens keeps every energy; the order of the sum changes its rounding."""
    torch.manual_seed(0)
    length, settings = 6, measure.Settings(1, 6, (1.5, 2.0), (2,))
    scores = 1e4 * torch.eye(length, dtype=torch.float64).expand(1, 50, -1, -1)
    inputs = AttentionInputs(scores, scores.roll(1, -1) / 1e4, None, False, 1.0, 0.0)
    value = torch.randn(1, 50, length, 3, dtype=torch.float64)
    attend, every = make("eager", inputs), torch.arange(length)
    kept = measure.measure_heads(PLAIN.build(50), attend, value, (0, every), settings)
    np.testing.assert_allclose(kept["energy_p2_before"], kept["energy_p2_after"])
    assert kept["energy_p2_falls"].sum() == kept["energy_p1.5_falls"].sum() == 0
