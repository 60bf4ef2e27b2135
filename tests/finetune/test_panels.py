"""What a run prints before and after: read from the settings and the results, and true."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from glue_runs import ROOT, flags, written

from finetune import code_classification, compare, glue, lm
from finetune.engine import panels
from finetune.engine.predictions import write_evaluated
from finetune.settings import recipes
from hf_graphattn.shell import main as command
from tasks import Split

GFSA = ("--variant", "gfsa", "--order", "4", "--layers", "0", "--filter_learning_rate", "0.1")


def rows(text: str) -> dict[str, str]:
    """The rows of what was printed, by the panel's title and their label."""
    found: dict[str, str] = {}
    title = label = ""
    for line in text.splitlines():
        if line and not line.startswith(" "):
            title = line
        elif line.startswith(" " * 18):
            found[f"{title} {label}"] += f" {line.strip()}"
        elif line.startswith("  ") and line[16:18] == "  ":
            label = line[:16].strip()
            found[f"{title} {label}"] = line[18:]
    return found


def commands(text: str) -> list[list[str]]:
    """The commands among the lines."""
    return [
        shlex.split(line)
        for line in text.splitlines()
        if line.startswith("    ") and line.split()[0] in ("python", "graphattn")
    ]


def test_what_is_about_to_be_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    glue.main(
        flags(
            tmp_path,
            "mnli",
            *GFSA,
            "--checkpointing_steps",
            "epoch",
            "--eval_steps",
            "2",
            "--num_train_epochs",
            "2",
            "--gradient_accumulation_steps",
            "2",
        )
    )
    found = rows(capsys.readouterr().out)
    expected = {
        "task": "mnli; rows: 8 train, 5 validation_matched, 5 validation_mismatched",
        "variant": "gfsa: order 4, w_0 0.0, w_1 1.0, w_K 0.0",
        "scalars": "4 learned (w_K), in 1 of 2 self-attention modules",
        "length": "2 epochs, 2 updates",
        "batch": "8 rows an update: 2 batches of 4 in 1 process",
        "learning rate": "5e-05, of the scalars 0.1; linear",
        "evaluation": "every 2 updates, by accuracy",
        "checkpoints": (
            "after each epoch; kept: all (--checkpoints_total_limit N keeps the newest N)"
        ),
        "output": str(tmp_path / "out"),
    }
    assert {name: found[f"Training: glue.py {name}"] for name in expected} == expected
    model, attention = (found[f"Training: glue.py {name}"] for name in ("model", "attention"))
    assert model.startswith(f"{tmp_path / 'bert'}: BertForSequenceClassification, ")
    assert model.endswith(" parameters, trained: all")
    assert "auto" in attention
    assert found["Training: glue.py device"].endswith("float32")


def test_what_is_read_of_own_files_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = flags(tmp_path, "cola", "--text_column_names", "review")
    file = tmp_path / "own.csv"
    file.write_text("id,review,label\na1,good,positive\na2,bad,negative\na3,worse,negative\n")
    own = {"--train_file": str(file), "--validation_file": str(file)}
    argv = [*argv[4:], *(word for pair in own.items() for word in pair)]
    results = glue.main(argv)
    found = rows(capsys.readouterr().out)
    assert found["Training: glue.py columns"] == "text <- review, label <- label"
    assert found["Training: glue.py labels"] == "negative 2, positive 1"
    assert results["columns"] == {"text": "review", "label": "label"}
    assert results["data"]["train"]["labels"] == {"negative": 2, "positive": 1}
    file.write_text("id,review,score\na1,good,0.5\na2,bad,0.25\n")
    glue.main([*argv, "--label_column_name", "score", "--overwrite_output_dir"])
    found = rows(capsys.readouterr().out)
    assert found["Training: glue.py columns"] == "text <- review, label <- score"
    assert found["Training: glue.py labels"] == "numbers: regression"


def test_the_commands_that_are_named_are_the_real_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    others = ("--w_0", "-1e-3", "--seed", "7", "--overwrite_output_dir", "--do_predict")
    results = glue.main(flags(tmp_path, "cola", *GFSA, *others))
    (python, script, *words), *library = commands(capsys.readouterr().out)
    assert (python, script, len(library)) == ("python", "finetune/compare.py", 2)
    for name, *arguments in library:
        assert name == "graphattn"
        assert str(tmp_path / "out") in arguments
        command._parser().parse_args(arguments)
    assert compare.main([*words, "--dry_run", "--seeds", "1"]) == 0
    planned = [
        shlex.split(line)
        for line in capsys.readouterr().out.splitlines()
        if "finetune/glue.py" in line
    ]
    of_variant = {recipes.value_of(words, "variant"): words for words in planned}
    assert list(of_variant) == ["none", "gfsa"]
    same = glue.SCHEMA.parse(of_variant["gfsa"][2:]).deciding()
    unlike = {name for name, value in same.items() if value != results["settings"][name]}
    assert unlike == {"seed"}  # each run's own
    assert not (tmp_path / "out-compared").exists()


def test_the_command_keeps_what_the_scripts_own_default_is_not() -> None:
    """max_length is 128 in the class of flags, and 512 in code_classification.py."""
    given = {"model_name_or_path": "m", "output_dir": "out", "variant": "gfsa"}
    for length, is_said in ((128, True), (512, False)):
        settings = code_classification.SCHEMA.settings(
            {**given, "max_length": length, "metric": ["f1", "matthews_correlation"]}
        )
        trainer = SimpleNamespace(settings=settings, folder=Path("out"))
        words = panels.compare_words(trainer, "code_classification")
        assert ("--max_length" in words) == is_said
        assert "--metric" not in words  # compare.py's is the one that is compared


@pytest.mark.parametrize(
    ("length", "said"), [("9", "the model was trained with max_length 8, here 9"), ("8", None)]
)
def test_an_evaluation_of_other_inputs_than_in_training_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], length: str, said: str | None
) -> None:
    glue.main(flags(tmp_path, "cola", "--max_length", "8"))
    words = ["--model_name_or_path", str(tmp_path / "out"), "--max_length", length]
    words += ["--output_dir", str(tmp_path / "again"), "--do_eval_only"]
    glue.main(flags(tmp_path, "cola", *words))
    assert rows(capsys.readouterr().out).get("Evaluation: glue.py warning") == said
    # transformers' Trainer has a file of this name too.
    (tmp_path / "out" / "all_results.json").write_text('{"epoch": 3.0}')
    glue.main(flags(tmp_path, "cola", *words, "--overwrite_output_dir"))
    assert "Evaluation: glue.py warning" not in rows(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--block_size 32 --word_level true", None),  # the model's own, and one metric more
        ("--block_size 8", "the model was trained with block_size 32, here 8"),
        ("--row_end eos", "the model was trained with row_end none, here eos"),
    ],
)
def test_what_was_left_to_the_model_is_compared_by_what_it_came_to(
    tmp_path: Path, words: str, said: str | None
) -> None:
    (tmp_path / "all_results.json").write_text(
        '{"block_size": 32, "row_end": "none", "settings": {"block_size": null, "row_end": null}}'
    )
    model = ["--model_name_or_path", str(tmp_path), "--output_dir", "o", "--task_name", "demo"]
    settings = lm.SCHEMA.parse([*model, *words.split()])
    facts = {
        "block_size": settings.data.block_size or 32,
        "row_end": settings.data.row_end or "none",
    }
    trainer = SimpleNamespace(settings=settings, objective=SimpleNamespace(facts=lambda: facts))
    assert list(panels._otherwise(trainer)) == ([("warning", said)] if said else [])


def test_a_run_that_gives_one_answer_says_so(tmp_path: Path) -> None:
    """By the name of its class; scores and texts as they are."""
    trainer = SimpleNamespace(folder=tmp_path)
    for names, predictions, said in (
        (("no", "yes"), np.array([1, 1]), "yes"),
        ((), np.array([1.0, 1.0]), "1.0"),
        ((), np.array(["", ""]), "no text"),
    ):
        write_evaluated(Split("validation"), predictions, np.array([0, 1]), tmp_path, names)
        found = list(panels._constant(trainer))
        told = f"every row is predicted as {said} (eval_predictions.tsv)"
        assert found == [("warning", told)]
    (tmp_path / "eval_predictions.tsv").write_text("index\tprediction\tlabel\n0\t1\t1\n1\t1\t1\n")
    assert list(panels._constant(trainer)) == []


def test_times_are_told_by_the_names_of_transformers(tmp_path: Path) -> None:
    found = glue.main(flags(tmp_path, "mnli", "--num_train_epochs", "2"))
    assert written(tmp_path) == json.loads(json.dumps(found))
    assert (found["train_samples"], found["eval_samples"], found["eval_samples_mm"]) == (8, 5, 5)
    assert 0 < found["eval_runtime"] < found["train_runtime"]
    assert found["train_samples_per_second"] == pytest.approx(16 / found["train_runtime"])
    assert found["train_steps_per_second"] == pytest.approx(4 / found["train_runtime"])
    assert not any("runtime" in name for evaluation in found["history"] for name in evaluation)
