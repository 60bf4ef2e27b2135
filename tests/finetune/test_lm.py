"""`finetune/lm.py` as users run it: perplexities against a plain computation, and what it saves."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer

import hf_graphattn as ga
from finetune import lm
from finetune.data import text
from finetune.data.text import Text, Windows, pad
from finetune.models.language import character_tokenizer
from finetune.objectives import language
from finetune.settings.language import LanguageDataArguments
from tasks.lm import perplexities
from tests import tiny

FINETUNE = Path(__file__).parents[2] / "finetune"
DEMO = FINETUNE / "demo" / "gpt2"
LINES = ["the cat sees the <unk>", "no dog runs", "it 's N years old"]
UNTRAINED = (
    *("--model_type", "gpt2", "--tokenizer_name", "char"),
    *("--config_overrides", "n_layer=2,n_head=4,n_embd=16,n_positions=32"),
)


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("text") / "sentences.json"
    path.write_text("\n".join(json.dumps({"sentence": line}) for line in LINES * 9))
    return str(path)


def run(folder: Path, text: str, *flags: str) -> dict[str, Any]:
    """The results of a run of one epoch that trains and measures on the same file."""
    files = ("--train_file", text, "--validation_file", text)
    results = lm.main(
        [*files, *flags, "--num_train_epochs", "1", "--output_dir", str(folder), "--seed", "1"]
    )
    written = json.loads((folder / "all_results.json").read_text())
    assert written["eval_perplexity"] == results["eval_perplexity"]
    return results


def independent(model: torch.nn.Module, ids: list[int], size: int, stride: int | None) -> float:
    """Nats a token, by the model's own loss on one window at a time."""
    nats, count, done = 0.0, 0, 1
    for start in range(0, len(ids) - 1, stride or size):
        window = torch.tensor([ids[start : start + size + (stride is not None)]])
        labels = window.clone()
        if stride is not None:
            labels[:, : done - start] = -100
            done = start + window.shape[1]
        predicted = int((labels[:, 1:] != -100).sum())
        if predicted:
            nats += float(model(window, labels=labels, use_cache=False).loss) * predicted
            count += predicted
    return nats / count


@pytest.mark.parametrize("stride", [None, 1, 6, 16])
@pytest.mark.parametrize("variant", [None, ga.GFSAConfig(order=4, w_K=0.3)])
def test_both_protocols_equal_a_plain_computation(stride: int | None, variant: Any) -> None:
    model = tiny.build("GPT-2").eval()
    if variant is not None:
        ga.patch_model(model, variant)
    ids = torch.randint(3, tiny.VOCABULARY, (103,), generator=torch.Generator().manual_seed(0))
    accelerator = Accelerator(cpu=True)
    loader = DataLoader(Windows(ids.int(), 16, stride), 5, collate_fn=pad)
    measured = language.measure_text(
        model, accelerator.prepare(loader), Text(ids.int(), 40, 309), accelerator
    )
    found = {**measured.metrics, **measured.counts}
    with torch.no_grad():
        loss = independent(model, ids.tolist(), 16, stride)
    assert found["loss"] == pytest.approx(loss, abs=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(loss), abs=1e-4)
    assert found["word_perplexity"] == pytest.approx(math.exp(loss * 103 / 40), rel=1e-4)
    assert found["predicted_tokens"] == (103 - 7 if stride is None else 102)
    assert found["bits_per_byte"] == pytest.approx(loss / math.log(2) / 3, rel=1e-5)
    assert (found["tokens"], found["words"], found["bytes"]) == (103, 40, 309)


def test_perplexity_of_a_model_that_knows_nothing() -> None:
    found = perplexities(nats=8 * math.log(50), tokens=8, words_per_token=0.5)
    assert found["perplexity"] == pytest.approx(50)
    assert found["word_perplexity"] == pytest.approx(2500)
    assert perplexities(8 * math.log(16), 8, bytes_per_token=2)["bits_per_byte"] == pytest.approx(2)
    assert perplexities(1.0, 1).keys() == {"loss", "perplexity"}
    assert perplexities(1e6, 1, None)["perplexity"] == math.inf


def test_from_nothing_with_a_filter(tmp_path: Path, sentences: str) -> None:
    flags = ("--block_size", "32", "--variant", "gfsa", "--order", "4", "--w_K", "0.2")
    results = run(tmp_path, sentences, *UNTRAINED, *flags, "--learning_rate", "1e-2")
    assert results["eval_protocol"] == "block"
    assert (results["block_size"], results["filter_scalars"]) == (32, 8)
    total = sum(len(line) + 1 for line in LINES) * 9
    assert results["eval_tokens"] == total
    assert results["train_blocks"] * 32 + results["train_left_over_tokens"] == total
    assert "eval_word_perplexity" not in results
    assert results["eval_bytes"] == total  # of these characters each is one
    assert results["eval_bits_per_byte"] == pytest.approx(results["eval_loss"] / math.log(2))
    assert results["greater_is_better"]["eval_bits_per_byte"] is False
    model = ga.from_pretrained(tmp_path, auto_class=AutoModelForCausalLM).eval()
    assert model.config.use_cache
    text = "".join(f"{line}\n" for line in LINES * 9)
    ids = AutoTokenizer.from_pretrained(tmp_path)(text)["input_ids"]
    with torch.no_grad():
        loss = independent(model, ids, 32, None)
    assert results["eval_perplexity"] == pytest.approx(math.exp(loss), abs=1e-4)


def test_one_text_file_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As in run_clm a part of it is held out, and what transformers calls the flags is read."""
    text = tmp_path / "own.txt"
    text.write_text("".join(f"line {i} of many\n" for i in range(100)))
    flags = ("--train_file", str(text), "--do_train", "--do_eval", "--max_steps", "1")
    with caplog.at_level("INFO"):
        found = lm.main([*UNTRAINED, *flags, "--block_size", "32", "--output_dir", str(tmp_path)])
    assert "the last 5 per cent of the training rows are held out" in caplog.text
    held_out = "".join(text.read_text().splitlines(keepends=True)[95:])
    assert (found["eval_tokens"], found["eval_bytes"], found["steps"]) == (*[len(held_out)] * 2, 1)
    assert found["settings"]["validation_split_percentage"] is None


def test_bytes_are_counted_unless_a_token_stands_for_any(tmp_path: Path) -> None:
    path = tmp_path / "own.txt"
    path.write_text("naïve\nno\n", "utf-8")
    own = character_tokenizer(["naïveo\n"])
    other = character_tokenizer(["naiveo\n"])  # without ï
    for row_end, count in (("none", 7 + 3), ("eos", 7 + 3 + 2)):
        arguments = LanguageDataArguments(
            train_file=str(path), validation_file=str(path), row_end=row_end
        )
        task, rows = text.load(arguments, predict=False)
        assert text.texts(task, rows, own)["train"].bytes == count
    unknown = text.texts(task, rows, other)["train"]
    assert (unknown.bytes, len(unknown.tokens)) == (None, 6 + 3 + 2)


def test_from_the_demo_checkpoint_by_words(tmp_path: Path, sentences: str) -> None:
    flags = ("--variant", "laplacian", "--step", "0.1", "--trainable", "step")
    protocol = ("--eval_protocol", "sliding", "--stride", "8", "--block_size", "16")
    words = ("--word_level", "true", "--row_end", "eos", "--test_file", sentences, "--do_predict")
    start = ("--model_name_or_path", str(DEMO), "--max_predict_samples", "3")
    results = run(tmp_path, sentences, *start, *flags, *protocol, *words)
    assert (results["eval_protocol"], results["stride"]) == ("sliding", 8)
    assert results["eval_words"] == 9 * sum(len(line.split()) + 1 for line in LINES)
    assert results["test_words"] * 9 == results["eval_words"]
    assert results["eval_predicted_tokens"] == results["eval_tokens"] - 1
    per_word = results["eval_loss"] * results["eval_tokens"] / results["eval_words"]
    assert results["eval_word_perplexity"] == pytest.approx(math.exp(per_word))
    assert results["test_perplexity"] > 1


def test_a_run_on_random_offsets_resumes_exactly(tmp_path: Path, sentences: str) -> None:
    flags = (*UNTRAINED, "--block_size", "16", "--random_offsets", "--checkpointing_steps", "5")
    whole = run(tmp_path / "out", sentences, *flags, "--max_train_steps", "12")
    assert whole["epochs"] > 1
    named = ("--resume_from_checkpoint", str(tmp_path / "out" / "step_5"))
    again = run(tmp_path / "again", sentences, *flags, "--max_train_steps", "12", *named)
    keys = ("eval_loss", "train_loss", "history")
    assert {key: again[key] for key in keys} == {key: whole[key] for key in keys}
    cut = run(tmp_path / "cut", sentences, *flags[:-3], "--max_train_steps", "12")
    assert cut["eval_loss"] != whole["eval_loss"]
