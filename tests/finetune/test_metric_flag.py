"""`--metric`: metrics beside the task's own, by name, from a file or the hub, in every script."""

from __future__ import annotations

from pathlib import Path

import evaluate
import pytest
from glue_runs import flags, written
from glue_stand_in import save_metric

from finetune import compare, glue, lm


def test_a_classification_is_measured_by_them_too(tmp_path: Path) -> None:
    glue.main(flags(tmp_path, "cola", "--metric", "accuracy", "f1", save_metric(tmp_path)))
    found = written(tmp_path)
    assert {"eval_matthews_correlation", "eval_accuracy", "eval_f1"} <= set(found)
    assert found["eval_distance"] == pytest.approx(1 - found["eval_accuracy"])
    assert found["greater_is_better"] == {
        "eval_loss": False,
        "eval_matthews_correlation": True,
        "eval_accuracy": True,
        "eval_f1": True,
        "eval_distance": False,
    }


def test_the_best_epoch_may_be_that_of_an_own_metric(tmp_path: Path) -> None:
    own = save_metric(tmp_path)
    more = ("--metric", own, "--metric_for_best_model", "distance", "--load_best_model_at_end")
    glue.main(flags(tmp_path, "cola", *more, "--num_train_epochs", "2"))
    best = written(tmp_path)["best"]
    history = [epoch["eval_distance"] for epoch in written(tmp_path)["history"]]
    assert (best["metric"], best["value"]) == ("eval_distance", min(history))


def test_a_language_model_is_measured_on_its_most_likely_tokens(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("one two three four five six seven eight nine ten\n" * 20)
    results = lm.main(
        [
            *("--model_type", "gpt2", "--config_overrides", "n_layer=1,n_embd=8,n_head=2"),
            *("--tokenizer_name", "char", "--train_file", str(text), "--block_size", "16"),
            *("--validation_file", str(text), "--output_dir", str(tmp_path / "out")),
            *("--max_train_steps", "2", "--metric", "accuracy"),
        ]
    )
    assert 0 <= results["eval_accuracy"] <= 1
    assert results["greater_is_better"]["eval_accuracy"] is True
    # A share of the predicted tokens, a whole number of them.
    right = results["eval_accuracy"] * results["eval_predicted_tokens"]
    assert right == pytest.approx(round(right), abs=1e-6)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("no/such.py", r"metric is 'no/such\.py'"),
        ("no_such_metric", r"metric is 'no_such_metric'.*accuracy, f1"),
        ("someone/else", r"metric is 'someone/else'.*or give --trust_remote_code to fetch"),
        ("someone/else:beta=2", r"metric is 'someone/else'.*or give --trust_remote_code to fetch"),
    ],
)
def test_refusals_come_before_a_model_is_looked_for(
    tmp_path: Path, spec: str, message: str
) -> None:
    argv = flags(tmp_path, "cola", "--metric", spec, "--model_name_or_path", "no/model")
    with pytest.raises(ValueError, match=message) as caught:
        glue.main(argv)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("variant", ["none", "gfsa"])
def test_code_of_the_hub_is_run_for_whoever_says_so(
    tmp_path: Path, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here a recipe that does not. A local module stands for what the hub would send."""
    own, asked = save_metric(tmp_path), []
    real = evaluate.load

    def fetched(place: str, **options: object) -> object:
        asked.append(place)
        return real(own, **options)

    monkeypatch.setattr(evaluate, "load", fetched)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"metric: [some/{variant}]\n")
    argv = flags(tmp_path, "cola", "--recipe", str(recipe), "--variant", variant)
    with pytest.raises(ValueError, match=rf"^metric is 'some/{variant}'; .*--trust_rem"):
        glue.main(argv)
    assert asked == []
    glue.main([*argv, "--trust_remote_code"])
    assert set(asked) == {f"some/{variant}"}
    assert "eval_distance" in written(tmp_path)


def test_a_comparison_fetches_no_code_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "load", pytest.fail)
    argv = ["--script", glue.__file__, "--task_name", "cola", "--model_name_or_path", "m"]
    argv += ["--variants", "none", "gfsa", "--output_dir", str(tmp_path / "o")]
    with pytest.raises(ValueError, match=r"^metric is 'some/hub-id'; .*--trust_remote_code"):
        compare.main([*argv, "--metric", "some/hub-id"])
