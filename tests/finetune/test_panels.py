"""What a run prints before and after: read from the settings and the results, and true."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from glue_runs import ROOT, flags, written

from finetune import code_classification, compare, glue, lm, terminal
from finetune.engine import panels
from finetune.engine.results import write_evaluated
from hf_graphattn.shell import main as command
from tasks import Split

GFSA = ("--variant", "gfsa", "--order", "4", "--layers", "0", "--filter_learning_rate", "0.1")


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    """The rows that runs print, by the title and their names."""
    found: dict[str, dict[str, str]] = {}
    monkeypatch.setattr(
        terminal, "print_rows", lambda title, rows: found.update({title: dict(rows)})
    )
    return found


def test_before_and_after(tmp_path: Path, printed: dict[str, dict[str, str]]) -> None:
    length = ("--num_train_epochs", "2", "--gradient_accumulation_steps", "2")
    results = glue.main(flags(tmp_path, "mnli", *GFSA, "--do_predict", *length))
    before, after, out = printed["Training: glue.py"], printed["Results"], tmp_path / "out"
    model = before.pop("model")
    assert model.startswith(f"{tmp_path / 'bert'}: BertForSequenceClassification, ")
    assert model.endswith(" parameters, trained: all")
    assert before.pop("labels").startswith("entailment ")
    assert before.pop("device").endswith("float32")
    assert before == {
        "task": "mnli; rows: 8 train, 5 validation_matched, 5 validation_mismatched",
        "columns": "text <- premise, text_pair <- hypothesis, label <- label",
        "filter": "GFSAConfig(trainable=('w_K',), layers=(0,), order=4, w_0=0.0, w_1=1.0, w_K=0.0);"
        " 4 scalars learned in 1 of 2 self-attention modules",
        "steps": "2 epochs, 2 updates of 2 batches of 4 rows",
        "learning rate": "5e-05, of the scalars 0.1; linear",
        "output": str(out),
    }
    after.pop("warning", None)
    assert after["metric"].startswith(f"accuracy {results['eval_accuracy']:.4f} (more is better)")
    assert after["scalars"].startswith("4 moved by 0.")
    assert after["saved"].startswith(f"{out}: the model, all_results.json, eval_predictions.tsv, ")
    assert after["saved"].endswith("MNLI-m.tsv, MNLI-mm.tsv")
    assert after.keys() == {"metric", "time", "scalars", "saved"}
    # Times have the names of transformers.
    assert written(tmp_path) == json.loads(json.dumps(results))
    names = ("train_samples", "eval_samples", "eval_samples_mm")
    assert [results[name] for name in names] == [8, 5, 5]
    assert 0 < results["eval_runtime"] < results["train_runtime"]
    assert results["train_samples_per_second"] == pytest.approx(16 / results["train_runtime"])
    assert results["train_steps_per_second"] == pytest.approx(2 / results["train_runtime"])
    assert not any("runtime" in name for evaluation in results["history"] for name in evaluation)


def test_columns_and_labels_of_own_files(
    tmp_path: Path, printed: dict[str, dict[str, str]]
) -> None:
    argv = flags(tmp_path, "cola", "--text_column_names", "review")
    file = tmp_path / "own.csv"
    file.write_text("id,review,label\na1,good,positive\na2,bad,negative\na3,worse,negative\n")
    argv = [*argv[4:], "--train_file", str(file), "--validation_file", str(file)]
    results = glue.main(argv)
    rows = printed["Training: glue.py"]
    assert rows["columns"] == "text <- review, label <- label"
    assert rows["labels"] == "negative 2, positive 1"
    assert results["columns"] == {"text": "review", "label": "label"}
    assert results["data"]["train"]["labels"] == {"negative": 2, "positive": 1}
    file.write_text("id,review,score\na1,good,0.5\na2,bad,0.25\n")
    glue.main([*argv, "--label_column_name", "score", "--overwrite_output_dir"])
    assert printed["Training: glue.py"]["labels"] == "numbers: regression"


def test_the_next_commands_are_real_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    others = ("--w_0", "-1e-3", "--seed", "7", "--overwrite_output_dir", "--do_predict")
    results = glue.main(flags(tmp_path, "cola", *GFSA, *others))
    lines = map(shlex.split, capsys.readouterr().out.splitlines())
    (_, script, *arguments), *library = (x for x in lines if x[:1] in (["python"], ["graphattn"]))
    assert (script, len(library)) == ("finetune/compare.py", 2)
    for _, *options in library:
        assert str(tmp_path / "out") in options
        command._parser().parse_args(options)
    assert compare.main([*arguments, "--dry_run", "--seeds", "1"]) == 0
    planned = [
        shlex.split(line)
        for line in capsys.readouterr().out.splitlines()
        if "finetune/glue.py" in line
    ]
    of_variant = {words[words.index("--variant") + 1]: words for words in planned}
    assert list(of_variant) == ["none", "gfsa"]
    same = glue.SCHEMA.parse(of_variant["gfsa"][2:]).deciding()
    unlike = {name for name, value in same.items() if value != results["settings"][name]}
    assert unlike == {"seed"}  # each run's own
    assert not (tmp_path / "out-compared").exists()


def test_the_command_keeps_what_the_scripts_own_default_is_not() -> None:
    """max_length is 128 in the class of flags, and 512 in code_classification.py."""
    values = {"model_name_or_path": "m", "output_dir": "out", "variant": "gfsa", "metric": ["f1"]}
    task = SimpleNamespace(family="code_classification")
    for length, is_kept in ((128, True), (512, False)):
        settings = code_classification.SCHEMA.run({**values, "max_length": length})
        trainer = SimpleNamespace(settings=settings, folder=Path("out"), task=task)
        arguments = panels.compare_command(trainer)
        assert ("--max_length" in arguments) == is_kept
        assert "--metric" not in arguments  # compare.py's is the one that is compared


@pytest.mark.parametrize(
    ("flags_", "warning"),
    [
        ("--block_size 32 --word_level true", None),  # the model's own, and one metric more
        ("--block_size 8", "the model was trained with block_size 32, here 8"),
        ("--row_end eos", "the model was trained with row_end none, here eos"),
    ],
)
def test_an_evaluation_of_other_inputs_than_in_training_warns(
    tmp_path: Path, flags_: str, warning: str | None
) -> None:
    (tmp_path / "all_results.json").write_text(
        '{"block_size": 32, "row_end": "none", "settings": {"block_size": null, "row_end": null}}'
    )
    model = ["--model_name_or_path", str(tmp_path), "--output_dir", "o", "--task_name", "demo"]
    settings = lm.SCHEMA.parse([*model, *flags_.split()])
    facts = {
        "block_size": settings.data.block_size or 32,
        "row_end": settings.data.row_end or "none",
    }
    trainer = SimpleNamespace(settings=settings, objective=SimpleNamespace(facts=lambda: facts))
    assert list(panels._other_inputs(trainer)) == ([("warning", warning)] if warning else [])
    # transformers' Trainer has a file of this name too.
    (tmp_path / "all_results.json").write_text('{"epoch": 3.0}')
    assert list(panels._other_inputs(trainer)) == []


def test_a_run_with_one_prediction_for_all_rows_warns(tmp_path: Path) -> None:
    """By the name of its class; scores and texts as they are."""
    results = {"eval_accuracy": 0.5, "eval_runtime": 1.0, "filter_max_moved": None}
    trainer = SimpleNamespace(
        folder=tmp_path,
        selection=SimpleNamespace(metric="eval_accuracy", greater_is_better=True),
        settings=SimpleNamespace(train=SimpleNamespace(do_eval_only=True, do_predict=False)),
    )
    for names, predictions, answer in (
        (("no", "yes"), np.array([1, 1]), "yes"),
        ((), np.array([1.0, 1.0]), "1.0"),
        ((), np.array(["", ""]), "no text"),
    ):
        write_evaluated(Split("validation"), predictions, np.array([0, 1]), tmp_path, names)
        rows = dict(panels.closing(trainer, results))
        assert rows["warning"] == f"every row is predicted as {answer} (eval_predictions.tsv)"
    (tmp_path / "eval_predictions.tsv").write_text("index\tprediction\tlabel\n0\t1\t1\n1\t1\t1\n")
    assert "warning" not in dict(panels.closing(trainer, results))
