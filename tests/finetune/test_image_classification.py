"""The script for images from flags to files: from nothing, from a saved model, every source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Image
from glue_runs import written
from image_runs import (
    CLASSES,
    VIT,
    flags,
    replaced,
    resumed_as_if_never_stopped,
    save_folder,
)
from PIL import Image as Pillow
from transformers import (
    AutoImageProcessor,
    AutoModelForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

import hf_graphattn as ga
import tasks
from finetune import image_classification
from finetune.data import images
from finetune.engine.results import EVALUATED
from finetune.models import images as models


def test_a_run_from_nothing_saves_what_loads_as_it_was_measured(tmp_path: Path) -> None:
    returned = image_classification.main(flags(tmp_path, "--variant", "gfsa", "--order", "3"))
    assert returned["eval_loss"] == written(tmp_path)["eval_loss"]
    assert {"eval_accuracy", "eval_top5_accuracy", "eval_loss"} <= set(returned)
    assert returned["filter_scalars"] == 8  # w_K of two layers with four heads
    model = ga.from_pretrained(tmp_path / "out").eval()
    processor = AutoImageProcessor.from_pretrained(tmp_path / "out", backend="pil")
    assert [model.config.id2label[i] for i in range(6)] == list(CLASSES)
    files = sorted((tmp_path / "validation").rglob("*.png"))
    labels = torch.tensor([CLASSES.index(file.parent.name) for file in files])
    images = [Pillow.open(file) for file in files]
    with torch.no_grad():
        logits = model(**processor(images, return_tensors="pt")).logits
    loss = torch.nn.functional.cross_entropy(logits, labels)
    assert float(loss) == pytest.approx(returned["eval_loss"], rel=1e-5)
    ranks = (logits > logits.gather(1, labels[:, None])).sum(1)
    assert returned["eval_top5_accuracy"] == pytest.approx(float((ranks < 5).float().mean()))
    assert returned["eval_accuracy"] == pytest.approx(float((ranks == 0).float().mean()))


def test_a_run_goes_on_from_a_saved_one_whose_labels_have_another_order(tmp_path: Path) -> None:
    first = image_classification.main(flags(tmp_path, "--variant", "gfsa"))
    turned = CLASSES[::-1]
    argv = replaced(
        flags(tmp_path, "--do_eval_only", "--model_name_or_path", str(tmp_path / "out")),
        **dict.fromkeys(("train_dir", "validation_dir", "model_type")),
        config_overrides=None,
        output_dir=str(tmp_path / "again"),
    )
    for name in ("train", "validation"):
        argv += [f"--{name}_file", as_parquet(tmp_path / name, turned)]
    again = image_classification.main(argv)
    for name in ("eval_loss", "eval_accuracy", "eval_top5_accuracy"):
        assert again[name] == pytest.approx(first[name], rel=1e-6)
    predicted = [(tmp_path / run / EVALUATED.format("")).read_text() for run in ("out", "again")]
    own, other = (
        [[int(n) for n in line.split("\t")[1:3]] for line in text.splitlines()[1:]]
        for text in predicted
    )
    assert [[5 - n for n in row] for row in own] == other


def as_parquet(folder: Path, classes: tuple[str, ...] | None) -> str:
    """The images of a folder as rows, with class labels of this order, or as pandas writes them."""
    paths = sorted(folder.rglob("*.png"))
    rows = {
        "img": [{"bytes": path.read_bytes(), "path": path.name} for path in paths],
        "label": [path.parent.name for path in paths],
    }
    file = folder.with_suffix(".parquet")
    if classes is None:
        pandas.DataFrame(rows).to_parquet(file)
    else:
        features = Features(img=Image(), label=ClassLabel(names=list(classes)))
        Dataset.from_dict(rows, features=features).to_parquet(file)
    return str(file)


def test_a_folder_and_parquet_files_of_its_images_are_the_same_data(tmp_path: Path) -> None:
    argv = flags(tmp_path)
    of_folder = image_classification.main(argv)
    for classes in (CLASSES, None):
        out = str(tmp_path / f"of {classes}")
        others = replaced(argv, train_dir=None, validation_dir=None, output_dir=out)
        for name in ("train", "validation"):
            others += [f"--{name}_file", as_parquet(tmp_path / name, classes)]
        others += ["--image_column_name", "img"] if classes is None else []
        of_files = image_classification.main(others)
        assert of_files["train_loss"] == of_folder["train_loss"]
        assert of_files["eval_loss"] == of_folder["eval_loss"]
        for split, known in of_folder["data"].items():
            assert known["rows"] == of_files["data"][split]["rows"]
            assert known["digest"] == of_files["data"][split]["digest"]
    assert list(of_folder["data"]["train"]["files"]) == [str(tmp_path / "train")]


@pytest.mark.parametrize("kind", ["vit", "deit"])  # deit has two classes that classify
def test_the_digits_run_from_nothing(tmp_path: Path, kind: str) -> None:
    vit = VIT.replace("patch_size=4", "patch_size=4,num_channels=1")
    results = image_classification.main(
        [
            *("--task_name", "digits", "--model_type", kind, "--config_overrides", vit),
            *("--max_train_samples", "40", "--max_eval_samples", "30", "--max_train_steps", "2"),
            *("--output_dir", str(tmp_path / "out")),
        ]
    )
    assert results["settings"]["task_name"] == "digits"
    assert results["data"]["train"]["rows"] == 40
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "out")
    assert model.config.num_labels == 10
    assert model.config.num_channels == 1


def test_the_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    rows = tasks.get("digits", "image_classification").builder()
    found, start = load_digits(), 0
    for split in ("train", "validation"):
        images = np.stack([np.asarray(image) for image in rows[split]["image"]])
        end = start + len(images)
        assert np.array_equal(np.round(images * (16 / 255)), found.images[start:end])
        assert list(rows[split]["label"]) == found.target[start:end].tolist()
        start = end
    assert start == 1797


def test_a_share_of_each_class_is_held_out_the_same_for_every_seed(tmp_path: Path) -> None:
    save_folder(tmp_path / "all", per_class=4)
    argv = replaced(
        flags(tmp_path, "--train_val_split", "0.25"),
        train_dir=str(tmp_path / "all"),
        validation_dir=None,
    )
    parts = []
    for seed in ("1", "2"):
        settings = image_classification.SCHEMA.parse([*argv, "--seed", seed])
        _, rows = images.load(settings.data, predict=False)
        parts.append([[row["path"] for row in rows[n]["image"]] for n in ("train", "validation")])
        assert sorted(rows["validation"]["labels"]) == list(range(6))
    assert parts[0] == parts[1]
    assert len(set(parts[0][0]) | set(parts[0][1])) == 24


def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    resumed_as_if_never_stopped(tmp_path, "--label_smoothing", "0.1")


def test_a_model_that_cannot_read_the_images_is_found_before_training(tmp_path: Path) -> None:
    argv = replaced(flags(tmp_path), config_overrides="image_size=8,patch_size=16")
    with pytest.raises(RuntimeError, match="size"):
        image_classification.main(argv)
    assert not (tmp_path / "out" / "train_log.jsonl").exists()


@pytest.mark.parametrize(("size", "unseen"), [(8, False), (10, True)])
def test_pixels_that_the_model_does_not_see_are_warned_of(
    size: int, unseen: bool, caplog: pytest.LogCaptureFixture
) -> None:
    config = ViTConfig(image_size=size, patch_size=4, num_hidden_layers=1, hidden_size=12)
    models.check_pixels(ViTForImageClassification(config), (3, size, size))
    assert ("does not see 2 rows and 2 columns" in caplog.text) == unseen
