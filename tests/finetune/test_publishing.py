"""`--push_to_hub` of a run, against the hub on the loopback."""

from __future__ import annotations

from pathlib import Path

import image_runs
import torch
from glue_runs import flags, written
from hub_server import pushed
from PIL import Image
from transformers import AutoImageProcessor, SwinConfig, ViTImageProcessorPil

import hf_graphattn as ga
import tasks
from finetune.engine import publishing
from finetune.glue import SCHEMA


def test_a_run_is_pushed_with_its_metrics(tmp_path: Path) -> None:
    argv = flags(tmp_path, "cola", "--variant", "gfsa", "--order", "4", "--push_to_hub")
    argv += ["--hub_model_id", "user/cola", "--checkpointing_steps", "epoch"]
    files = pushed("glue", argv, "user/cola", tmp_path / "home")
    assert {"README.md", "graph_attn.py", "model.safetensors", "all_results.json"} <= set(files)
    assert not any(name.startswith("step_") or name.endswith(".lock") for name in files)
    card = files["README.md"].decode()
    assert "type: matthews_correlation" in card
    assert f"value: {written(tmp_path)['eval_loss']}" in card
    assert 'ga.from_pretrained("user/cola")' in card


def test_a_patched_swin_is_pushed_as_a_classifier_of_images(tmp_path: Path) -> None:
    """What is in the repository is the model that was trained, with what makes its inputs."""
    swin = {"depths": [1, 1], "num_heads": [2, 2], "embed_dim": 8, "window_size": 2}
    config = SwinConfig(image_size=16, patch_size=2, num_channels=3, **swin)
    config.save_pretrained(tmp_path / "swin")
    ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(tmp_path / "swin")
    argv = image_runs.replaced(
        image_runs.flags(tmp_path, "--config_name", str(tmp_path / "swin"), "--variant", "gfsa"),
        model_type=None,
        config_overrides=None,
    )
    argv += ["--push_to_hub", "--hub_model_id", "user/swin"]
    files = pushed("image_classification", argv, "user/swin", tmp_path / "home")
    card = files["README.md"].decode()
    assert "pipeline_tag: image-classification" in card
    assert "type: image-classification" in card
    assert "type: top5_accuracy" in card
    for name, content in files.items():
        (tmp_path / "pulled").mkdir(exist_ok=True)
        (tmp_path / "pulled" / name).write_bytes(content)
    found = AutoImageProcessor.from_pretrained(tmp_path / "pulled")
    image = Image.fromarray(image_runs.pixels(1))
    inputs = found(image, return_tensors="pt")
    pulled, own = (ga.from_pretrained(tmp_path / name).eval() for name in ("pulled", "out"))
    assert type(pulled).__name__ == "SwinForImageClassification"
    assert ga.is_patched(pulled)
    with torch.no_grad():
        assert torch.equal(pulled(**inputs).logits, own(**inputs).logits)


def test_evaluations_are_the_numbers_of_the_run(tmp_path: Path) -> None:
    settings = SCHEMA.parse(flags(tmp_path, "mrpc"))
    results = {"eval_f1": 0.5, "eval_accuracy": 0.25, "train_loss": 1.0, "best": {"value": 2.0}}
    results |= {"eval_runtime": 3.0, "greater_is_better": {"eval_f1": True, "eval_accuracy": True}}
    found = publishing.evaluations(tasks.get("mrpc"), settings, results)
    assert [(each.metric_type, each.metric_value) for each in found] == [
        ("f1", 0.5),
        ("accuracy", 0.25),
    ]


def test_each_split_has_its_own_evaluations(tmp_path: Path) -> None:
    """MNLI's second validation set is not told as if it were the first."""
    settings = SCHEMA.parse(flags(tmp_path, "mnli"))
    results = {"eval_accuracy": 0.5, "eval_accuracy_mm": 0.25}
    results["greater_is_better"] = dict.fromkeys(results, True)
    found = publishing.evaluations(tasks.get("mnli"), settings, results)
    assert [(each.metric_type, each.dataset_split, each.metric_value) for each in found] == [
        ("accuracy", "validation_matched", 0.5),
        ("accuracy", "validation_mismatched", 0.25),
    ]
