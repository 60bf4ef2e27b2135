"""Images that cannot be used are refused in one line that names them, before a model is made."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas
import pytest
from image_runs import CLASSES, VIT, flags, pixels, replaced, save_folder
from PIL import Image

from finetune import image_classification
from finetune.data import images
from finetune.models import loading

Change = Callable[[Path], object]


def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str]) -> str:
    """The error of the script for these flags; no model may be made."""
    monkeypatch.setattr(loading, "load_model", None)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        image_classification.main(argv)
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(str(tmp_path), "")


def deep(folder: Path) -> None:
    Image.fromarray(np.full((8, 8), 40000, np.uint16)).save(folder / "train" / "cat" / "deep.png")


def one_class(folder: Path) -> None:
    for name in CLASSES[1:]:
        shutil.rmtree(folder / "train" / name)
        shutil.rmtree(folder / "validation" / name)


LAYOUT = "train_dir is '/train'; allowed: a folder of images for each class, without inner ones"
BAD_FOLDERS: dict[str, tuple[Change, str]] = {
    "no image": (
        lambda folder: (folder / "train" / "cat" / "0.png").write_text("hello"),
        "In row 1 of /train, the image /train/cat/0.png is unreadable; allowed: an image that "
        "Pillow can read. Write it again, or drop it. Reading it raised UnidentifiedImageError: ",
    ),
    "broken link": (
        lambda folder: (folder / "train" / "dog" / "new.png").symlink_to("gone.png"),
        "In row 7 of /train, the image /train/dog/new.png is unreadable; allowed",
    ),
    "truncated": (
        lambda folder: os.truncate(folder / "validation" / "dog" / "0.png", 60),
        "In row 3 of /validation, the image /validation/dog/0.png is unreadable; allowed",
    ),
    "16 bits": (
        deep,
        "In row 4 of /train, the image /train/cat/deep.png is of mode I;16; allowed: images of ",
    ),
    "one class": (
        one_class,
        "column label of split 'train' in /train is 'cat' in all rows; allowed: two labels or more",
    ),
    "other classes": (
        lambda folder: (folder / "validation" / "cat").rename(folder / "validation" / "zebra"),
        "the classes of split 'validation' is dog, emu, fox, gnu, hen, zebra; allowed: those of "
        "split 'train': cat, dog, emu, fox, gnu, hen. Name the classes alike",
    ),
    "empty folder": (
        lambda folder: [shutil.rmtree(folder / "train"), (folder / "train").mkdir()],
        f"{LAYOUT}. Add images.",
    ),
    "stray image": (
        lambda folder: shutil.copy(folder / "train" / "cat" / "0.png", folder / "train"),
        f"{LAYOUT}. Move /train/0.png.",
    ),
    "deep image": (
        lambda folder: shutil.copytree(folder / "train" / "cat", folder / "train" / "dog" / "new"),
        f"{LAYOUT}. Move /train/dog/new.",
    ),
}


@pytest.mark.parametrize("name", BAD_FOLDERS)
def test_folders_that_cannot_be_used(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = flags(tmp_path)
    change, message = BAD_FOLDERS[name]
    change(tmp_path)
    assert refused(tmp_path, monkeypatch, argv).startswith(message)


def encoded(array: np.ndarray) -> dict[str, object]:
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, "PNG")
    return {"bytes": stream.getvalue(), "path": "b.png"}


IMAGE, GOOD = {"bytes": b"no image", "path": "a.png"}, encoded(pixels(0))
BAD_TABLES = {
    "missing": (
        {"image": [None, IMAGE] * 2, "label": ["a", "b"] * 2},
        "In row 1 of /own.parquet, the image is unreadable; allowed",
    ),
    "numbers": (
        {"image": [1, 2], "label": ["a", "b"]},
        "the data in column image of split 'train' in /own.parquet is unreadable; allowed: whole",
    ),
    "no column of images": (
        {"picture": [1, 2], "label": ["a", "b"]},
        "image_column_name is None; allowed: one of the data's columns: picture, label.",
    ),
    "no column of labels": (
        {"image": [1, 2], "y": ["a", "b"]},
        "label_column_name is None; allowed: one of the data's columns: image, y.",
    ),
    "scores": (
        {"image": [IMAGE] * 2, "label": [0.5, 1.5]},
        "column label of split 'train' in /own.parquet is of type Value('float64'); allowed: class",
    ),
    # Rows are numbered as in their file, though a share of them is held out.
    "no image, share": (
        {"image": [*[GOOD] * 10, IMAGE, GOOD], "label": ["a", "b"] * 6},
        "In row 11 of /own.parquet, the image a.png is unreadable; allowed",
    ),
    "no label, share": (
        {"image": [GOOD] * 12, "label": ["a", "b", "c"] * 3 + ["a", "b", None]},
        "In row 12 of /own.parquet, column label of task own_files is None; allowed",
    ),
}


@pytest.mark.parametrize("name", BAD_TABLES)
def test_tables_that_cannot_be_used(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, message = BAD_TABLES[name]
    file = tmp_path / "own.parquet"
    pandas.DataFrame(rows).to_parquet(file)
    argv = replaced(flags(tmp_path), train_dir=None, validation_dir=None)
    argv += ["--train_file", str(file)]
    is_share = name.endswith("share")
    argv += ["--train_val_split", "0.4"] if is_share else ["--validation_file", str(file)]
    assert refused(tmp_path, monkeypatch, argv).startswith(message)


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"validation_dir": None}, "the data of task own_files in /train is without split 'vali"),
        ({"train_val_split": "0.3"}, "train_val_split is 0.3; allowed: None with data that has va"),
        (
            {"validation_dir": None, "train_val_split": "0.01"},
            "train_val_split is 0.01; allowed: a share that leaves rows of each class",
        ),
        ({"model_type": "gpt2", "config_overrides": None}, "model_type is 'gpt2'; allowed: a type"),
        ({"config_overrides": f"{VIT},num_channels=2"}, "num_channels is 2; allowed: 1 (L), 3 (RG"),
        ({"image_processor_name": "finetune/demo/bert"}, "image_processor_name is 'finetune/demo/"),
    ],
)
def test_flags_that_cannot_be_used(
    tmp_path: Path, others: dict, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = flags(tmp_path)
    known = {name: value for name, value in others.items() if f"--{name}" in argv}
    argv = replaced(argv, **known)
    for name in others.keys() - known.keys():
        argv += [f"--{name}", others[name]]
    assert refused(tmp_path, monkeypatch, argv).startswith(message)


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB"), (4, "RGBA")])
def test_images_of_every_mode_are_converted_to_the_models(
    tmp_path: Path, channels: int, mode: str
) -> None:
    argv = flags(tmp_path)
    for other in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK"):
        file = tmp_path / "train" / "cat" / f"{other}.tiff"
        Image.fromarray(pixels(7)).convert(other).save(file)
    shutil.rmtree(tmp_path / "validation" / "cat")  # a split may lack a class
    argv = replaced(argv, config_overrides=f"{VIT},num_channels={channels}")
    assert image_classification.main(argv)["data"]["validation"]["rows"] == 10
    _, rows = images.load(image_classification.SCHEMA.parse(argv).data, predict=False)
    split = images.Images("train", rows["train"], images.Inputs(None, mode, (8, 8), range(6)))
    assert {split[row]["image"].mode for row in range(len(split))} == {mode}


def test_the_digest_of_images_is_of_their_content(tmp_path: Path) -> None:
    """And not of anything of the process: a run continues in another one."""
    argv, digests = flags(tmp_path), []
    for image in (pixels(1), pixels(2), pixels(1)):
        Image.fromarray(image).save(tmp_path / "train" / "cat" / "0.png")
        _, rows = images.load(image_classification.SCHEMA.parse(argv).data, predict=False)
        inputs = images.Inputs(None, "RGB", (8, 8), range(6))
        digests.append(images.Images("train", rows["train"], inputs).digest)
    assert digests[0] == digests[2] != digests[1]
    labels = rows["train"].remove_columns("labels").add_column("labels", [0] * 18)
    assert images.Images("train", labels, inputs).digest != digests[2]


def test_the_first_images_of_a_folder_are_of_many_classes(tmp_path: Path) -> None:
    argv = flags(tmp_path)
    save_folder(tmp_path / "many", 40, CLASSES[:3])
    argv = replaced(argv, train_dir=str(tmp_path / "many"), validation_dir=str(tmp_path / "many"))
    argv += ["--max_train_samples", "30", "--max_eval_samples", "30"]
    _, rows = images.load(image_classification.SCHEMA.parse(argv).data, predict=False)
    for split in ("train", "validation"):
        assert len(rows[split]) == 30
        assert set(rows[split]["labels"]) == {0, 1, 2}
