"""`diagnose` on every architecture: right numbers, no padding, and the model left as it was."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_code
import tiny_speech
import torch
from diagnosing import QUICK, assert_same, assert_unchanged, state, whole
from tiny import HEADS, LAYERS, ROWS, build, inputs
from transformers import (
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    SwinConfig,
    SwinModel,
    Wav2Vec2ForCTC,
)
from zoo import models

import hf_graphattn as ga
from hf_graphattn.backends import AttentionInputs, make
from hf_graphattn.diagnostics import Part, diagnose, measure
from hf_graphattn.diagnostics.collect import PLAIN

TWO_STACKS = {"BART", "PLBART", "T5", "Whisper"}


@pytest.mark.parametrize("architecture", ROWS)
def test_every_architecture(architecture: str) -> None:
    """Shapes; rows of A that sum to 1; plain and filtered; the model afterwards."""
    model = build(architecture)
    model.train()
    model.get_submodule(next(name for name, _ in model.named_modules() if name)).eval()
    batch = whole(model)
    before = state(model, batch)
    diagnosis = diagnose(model, batch, **QUICK)
    assert_unchanged(before, model, batch)
    names = ["encoder", "decoder"] if architecture in TWO_STACKS else ["model"]
    assert [part.name for part in diagnosis.parts] == names
    for part in diagnosis.parts:
        check_part(part)
        assert set(part.variants) == {"plain"}
        np.testing.assert_allclose(part.response.mean[..., 0], 1, atol=1e-9)
        np.testing.assert_array_equal(part.response.mean, part.attention_response.mean)
    ga.patch_model(model, ga.LaplacianConfig(step=0.4, trainable=("step",)))
    before = state(model, batch)
    filtered = diagnose(model, batch, **QUICK)
    assert_unchanged(before, model, batch)
    for part in filtered.parts:
        check_part(part)
        np.testing.assert_allclose(part.scalars["step"], 0.4, rtol=1e-6)
        assert part.learned == ("step",)
        assert not np.allclose(part.response.mean, part.attention_response.mean)


def check_part(part: Part) -> None:
    assert (part.layers, part.heads, part.sequences) == (LAYERS, HEADS, 3)
    for summary in part.by_depth.values():
        assert summary.mean.shape == summary.std.shape == (LAYERS + 1,)
        assert np.isfinite(summary.mean).all()
        assert np.isfinite(summary.std).all()
    for summary in part.by_head.values():
        assert summary.mean.shape == summary.std.shape == (LAYERS, HEADS)
        assert np.isfinite(summary.mean).all()
    assert part.approximation_error.mean.shape == (LAYERS, HEADS, 2)


@pytest.mark.parametrize(
    ("architecture", "padding"),
    [("BERT", "right"), ("GPT-2", "right"), ("T5", "right"), ("Llama", "left"), ("T5", "left")],
)
def test_a_padded_batch_is_its_sequences_alone(architecture: str, padding: str) -> None:
    torch.manual_seed(2)
    model = ga.patch_model(build(architecture), ga.PLaTConfig()).double()
    batch = inputs(model, padding)
    together = diagnose(model, batch)
    masks = {"encoder": "attention_mask", "decoder": "decoder_attention_mask"}
    alone = []
    for row in range(3):
        one = {name: tensor[row : row + 1] for name, tensor in batch.items()}
        for ids, mask in (("input_ids", masks["encoder"]), ("decoder_input_ids", masks["decoder"])):
            if mask in one:
                keep = one.pop(mask)[0].bool()
                one[ids] = one[ids][:, keep]
        alone.append(diagnose(model, one))
    for part, *own in zip(together.parts, *(each.parts for each in alone), strict=True):
        assert part.tokens == sum(each.tokens for each in own)
        for name in part.by_head:
            every = np.stack([each.by_head[name].mean for each in own])
            np.testing.assert_allclose(part.by_head[name].mean, every.mean(0), atol=1e-7)
            std = every.std(0, ddof=1)
            np.testing.assert_allclose(part.by_head[name].std, std, atol=1e-7)
        for name in part.by_depth:
            every = np.stack([each.by_depth[name].mean for each in own])
            np.testing.assert_allclose(part.by_depth[name].mean, every.mean(0), rtol=1e-6)
        every = np.stack([each.response.mean for each in own])
        np.testing.assert_allclose(part.response.mean, every.mean(0), atol=1e-6)


@pytest.mark.parametrize("architecture", ["BERT", "GPT-2", "Qwen3"])
def test_the_numbers_are_those_of_the_matrices_that_the_model_returns(architecture: str) -> None:
    """Against `output_attentions`, with the sums written out."""
    torch.manual_seed(3)
    model = build(architecture).double()
    batch = {name: tensor[:1] for name, tensor in whole(model).items()}
    plain = build_eager_copy(model)
    ga.patch_model(model, ga.GFSAConfig(order=4, w_0=0.2, w_K=-0.3))
    with torch.no_grad():
        layers = model(**batch, output_attentions=True, use_cache=False).attentions
        first = plain(**batch, output_attentions=True, use_cache=False).attentions[0]
        hidden = model(**batch, output_hidden_states=True, use_cache=False).hidden_states
    part = diagnose(model, batch).parts[0]
    for layer, matrix in enumerate(layers):
        eigenvalues = np.linalg.eigvals(matrix[0].numpy())
        largest = np.abs(eigenvalues).max(-1)
        np.testing.assert_allclose(part.by_head["largest_eigenvalue"].mean[layer], largest)
    length = first.shape[-1]
    for head, matrix in enumerate(first[0]):
        entropy = -sum(a * math.log(a) for a in matrix.flatten().tolist() if a > 0) / length
        assert part.by_head["entropy"].mean[0, head] == pytest.approx(entropy)
        cube = matrix @ matrix @ matrix
        gap = cube - (matrix + 2 * (matrix @ matrix - matrix))
        error = gap.abs().sum(-1).max().item()
        # transformers takes the softmax in float32, even of a float64 model.
        assert part.approximation_error.mean[0, head, 1] == pytest.approx(error, rel=1e-6)
    for depth, states in enumerate(hidden):
        cosines = [
            torch.cosine_similarity(x, y, dim=0).item()
            for i, x in enumerate(states[0])
            for j, y in enumerate(states[0])
            if i != j
        ]
        assert part.by_depth["cosine"].mean[depth] == pytest.approx(np.mean(cosines))


def build_eager_copy(model: Any) -> Any:
    other = copy.deepcopy(model)
    other.set_attn_implementation("eager")
    return other


def test_layers_that_were_not_chosen_are_measured_as_plain() -> None:
    model = ga.patch_model(build("BERT"), ga.GFSAConfig(w_K=0.5, layers=(1,)))
    batch = whole(model)
    before = state(model, batch)
    part = diagnose(model, batch).parts[0]
    assert_unchanged(before, model, batch)
    assert part.variants == ("plain", "gfsa")
    assert part.variant == "plain, gfsa"
    np.testing.assert_array_equal(part.response.mean[0], part.attention_response.mean[0])
    assert np.isnan(part.scalars["w_K"][0]).all()
    np.testing.assert_allclose(part.scalars["w_K"][1], 0.5)


def test_every_scalar_of_every_head_is_told() -> None:
    model = ga.patch_model(build("BERT"), ga.PolynomialConfig(coefficients=(0.1, 0.9, 0.2)))
    filters = list(ga.graph_filters(model).values())
    with torch.no_grad():
        filters[1].coefficients[2] = torch.tensor([1.0, 2.0, 3.0])
    part = diagnose(model, whole(model), **QUICK).parts[0]
    assert part.learned == ("coefficients_0", "coefficients_1", "coefficients_2")
    assert [part.scalars[name][1, 2] for name in part.learned] == [1, 2, 3]
    assert part.scalars["coefficients_1"][0, 2] == pytest.approx(0.9)
    half = ga.patch_model(build("BERT"), ga.PLaTConfig(p=(1.5, 2.5)))
    part = diagnose(half, whole(half), **QUICK).parts[0]
    assert part.scalars["p"].tolist() == [[1.5, 1.5, 2.5, 2.5]] * LAYERS


def test_whether_the_energy_falls() -> None:
    """A - 2 I with uniform attention mirrors the tokens and then some; uniform A levels them."""
    model = build("BERT")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "query" in name:
                parameter.zero_()  # every score 0: A is uniform
    plain = diagnose(model, whole(model)).parts[0].by_head
    np.testing.assert_allclose(plain["entropy"].mean, math.log(11))
    assert plain["energy_p2_falls"].mean.min() == 1
    np.testing.assert_allclose(plain["energy_p2_after"].mean, 0, atol=1e-12)
    ga.patch_model(model, ga.LaplacianConfig(step=2.0))
    mirrored = diagnose(model, whole(model)).parts[0].by_head
    assert mirrored["energy_p2_falls"].mean.max() == 0
    first = mirrored["energy_p2_before"].mean
    np.testing.assert_allclose(mirrored["energy_p2_after"].mean, 4 * first)
    np.testing.assert_allclose(mirrored["largest_eigenvalue"].mean, 2)


def test_a_loader_is_read_up_to_the_number_of_sequences_wanted() -> None:
    model = build("GPT-2")
    batches = [whole(model) for _ in range(3)]
    seen = []

    def loader() -> Any:
        for batch in batches:
            seen.append(batch)
            yield batch

    diagnosis = diagnose(model, loader(), max_sequences=5, **QUICK)
    assert (diagnosis.parts[0].sequences, diagnosis.parts[0].tokens, len(seen)) == (5, 55, 2)
    joined = {name: torch.cat([b[name] for b in batches])[:5] for name in batches[0]}
    assert_same(diagnosis, diagnose(model, joined, **QUICK), 1e-5)


def test_under_autocast_it_is_measured_in_full() -> None:
    model = build("BERT").to(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        part = diagnose(model, whole(model), **QUICK).parts[0]
    np.testing.assert_allclose(part.response.mean[..., 0], 1, atol=1e-12)


def test_the_frame_and_the_json_hold_the_same_numbers() -> None:
    pytest.importorskip("pandas")
    model = ga.patch_model(build("BERT"), ga.GFSAConfig(layers=(1,)))
    diagnosis = diagnose(model, whole(model), **QUICK)
    frame = diagnosis.to_pandas()
    table = frame.query("statistic == 'entropy'").pivot(
        index="layer", columns="head", values="mean"
    )
    np.testing.assert_array_equal(table, diagnosis.parts[0].by_head["entropy"].mean)
    cosine = frame.query("statistic == 'cosine'")
    assert cosine["depth"].tolist() == [0, 1, 2]
    assert cosine["layer"].isna().all()
    error = frame.query("statistic == 'approximation_error' and order == 3")
    assert len(error) == LAYERS * HEADS
    read = json.loads(diagnosis.to_json())
    part = read["parts"][0]
    assert part["by_head"]["entropy"]["mean"] == table.to_numpy().tolist()
    assert part["scalars"]["w_K"] == [[None] * HEADS, [0.0] * HEADS]  # no NaN in JSON
    assert set(read["versions"]) == {"hf_graphattn", "torch", "transformers"}


def test_it_prints_a_row_a_layer_with_the_numbers_to_three_digits() -> None:
    model = ga.patch_model(build("BERT"), ga.GFSAConfig(order=4, w_K=0.25, layers=(1,)))
    diagnosis = diagnose(model, whole(model), **QUICK)
    (part,) = diagnosis.parts
    rows = {line.split()[0]: line.split() for line in str(diagnosis).splitlines()}
    states = ("cosine", "high_to_dc", "effective_rank")
    assert rows["embeddings"][1:] == [f"{part.by_depth[n].mean[0]:.3g}" for n in states]
    heads = [part.by_head[n].mean[1].mean() for n in ("entropy", "largest_eigenvalue", "homophily")]
    numbers = [part.by_depth[n].mean[2] for n in states] + heads
    assert rows["1"] == ["1", "gfsa", *(f"{x:.3g}" for x in numbers), "w_K", "0.25"]
    assert diagnosis._repr_html_().count("<tr>") == 1 + 1 + LAYERS


NINE = {"input_ids": torch.ones(1, 9, dtype=torch.long)}


@pytest.mark.parametrize("patched", [False, True])
def test_after_an_error_the_model_is_as_it_was(patched: bool) -> None:
    model = build("BERT").train()
    if patched:
        ga.patch_model(model, ga.GFSAConfig(layers=(0,)))
    batch = whole(model)
    before = state(model, batch)
    with pytest.raises(IndexError):
        diagnose(model, [batch, {"input_ids": batch["input_ids"] + 1000}], **QUICK)
    assert_unchanged(before, model, batch)


@pytest.mark.parametrize(
    ("data", "how", "words"),
    [
        ([], {}, r"without a sequence of two tokens"),
        ({"input_ids": torch.tensor([[3]])}, {}, r"Give longer texts"),
        (NINE, {"max_tokens": 8}, r"length is 9; allowed: at most max_tokens=8"),
        (NINE, {"max_sequences": 0}, r"max_sequences is 0"),
        (
            {**NINE, "attention_mask": torch.tensor([[1.0] * 8 + [float("nan")]])},
            {},
            r"a value of attention_mask is nan; allowed: 1 at real tokens and 0 at padding",
        ),
        (NINE, {"powers": (-1.0,)}, r"powers is -1\.0; allowed: .* above 0"),
        (
            {**NINE, "attention_mask": torch.ones(1, 1, 9, 9)},
            {},
            r"shape of attention_mask is \(1, 1, 9, 9\); allowed: \(1, 9\)",
        ),
    ],
)
def test_refusals(data: Any, how: dict[str, Any], words: str) -> None:
    with pytest.raises(ga.GraphAttentionError, match=words):
        diagnose(build("BERT"), data, **how)


@pytest.mark.parametrize("stages", [1, 2])
def test_windows_of_a_sequence_are_no_sequences(stages: int) -> None:
    sizes = {"image_size": 16, "patch_size": 2, "embed_dim": 8, "window_size": 4}
    swin = SwinModel(SwinConfig(**sizes, depths=[1] * stages, num_heads=[2] * stages))
    with pytest.raises(ga.GraphAttentionError, match=r"SwinModel'; allowed: one .* no windows"):
        diagnose(swin, {"pixel_values": torch.randn(2, 3, 16, 16)})


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
