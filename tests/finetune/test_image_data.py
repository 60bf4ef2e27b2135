"""Images that cannot be used are refused in one line that names them, before a model is made."""

from __future__ import annotations

import io
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas
import pytest
from image_runs import CLASSES, VIT, flags, pixels, replaced, save_folder
from PIL import Image

from finetune import image_classification
from finetune.errors import Refused
from finetune.models import loading

Change = Callable[[Path], object]


def truncated(folder: Path) -> None:
    file = folder / "train" / "cat" / "0.png"
    file.write_bytes(file.read_bytes()[:60])


def deep(folder: Path) -> None:
    Image.fromarray(np.full((8, 8), 40000, np.uint16)).save(folder / "train" / "cat" / "deep.png")


def encoded(found: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(found).save(stream, "PNG")
    return stream.getvalue()


def one_class(folder: Path) -> None:
    for name in CLASSES[1:]:
        shutil.rmtree(folder / "train" / name)


def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str]) -> str:
    """What the script says of these flags; no model may be made."""
    monkeypatch.setattr(loading, "load_model", None)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        image_classification.main(argv)
    said = str(caught.value)
    assert "\n" not in said
    return said.replace(str(tmp_path), "")


LAYOUT = "train_dir is '/train'; allowed: a folder of images for each class, without inner ones"
BAD_FOLDERS: dict[str, tuple[Change, str]] = {
    "no image": (
        lambda folder: (folder / "train" / "cat" / "0.png").write_text("hello"),
        "the image /train/cat/0.png is unreadable; allowed: an image that Pillow can read. Write "
        "it again, or drop it. Reading it raised UnidentifiedImageError: cannot identify",
    ),
    "empty file": (
        lambda folder: (folder / "validation" / "dog" / "new.png").touch(),
        "the image /validation/dog/new.png is unreadable; allowed",
    ),
    "broken link": (
        lambda folder: (folder / "train" / "dog" / "new.png").symlink_to("gone.png"),
        f"{LAYOUT}. Reading raised FileNotFoundError: [Errno 2] No such file or directory: "
        "'/train/dog/new.png'",
    ),
    "truncated": (truncated, "the image /train/cat/0.png is unreadable; allowed"),
    "16 bits": (
        deep,
        "the image /train/cat/deep.png is of mode I;16; allowed: images of 8 bits a pixel.",
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
    "empty class": (
        lambda folder: (folder / "train" / "ant").mkdir(),
        f"{LAYOUT}. Move what lies in ant, or remove folders without images.",
    ),
    "empty folder": (
        lambda folder: [shutil.rmtree(folder / "train"), (folder / "train").mkdir()],
        f"{LAYOUT}. Reading raised ",
    ),
    "stray image": (
        lambda folder: shutil.copy(folder / "train" / "cat" / "0.png", folder / "train"),
        f"{LAYOUT}. Move what lies in train,",
    ),
    "deep image": (
        lambda folder: shutil.copytree(folder / "train" / "cat", folder / "train" / "dog" / "new"),
        f"{LAYOUT}. Move what lies in new,",
    ),
    "no folder": (
        lambda folder: shutil.rmtree(folder / "train"),
        "train_dir is '/train'; allowed: an existing folder. It does not exist",
    ),
}


@pytest.mark.parametrize("name", BAD_FOLDERS)
def test_folders_that_cannot_be_used(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = flags(tmp_path)
    change, said = BAD_FOLDERS[name]
    change(tmp_path)
    assert refused(tmp_path, monkeypatch, argv).startswith(said)


def test_a_folder_of_images_is_no_data_set(tmp_path: Path) -> None:
    argv = replaced(flags(tmp_path), train_dir=None, validation_dir=None)
    with pytest.raises(
        Refused, match=r"dataset_name is .*A folder of images is given as train_dir"
    ):
        image_classification.main([*argv, "--dataset_name", str(tmp_path)])


IMAGE = {"bytes": b"no image", "path": "a.png"}
GOOD = {"bytes": encoded(pixels(0)), "path": "b.png"}
BAD_TABLES = {
    "no image": (
        {"image": [IMAGE] * 4, "label": ["a", "b"] * 2},
        "In row 1 of /own.parquet, the image a.png is unreadable; allowed",
    ),
    "missing": (
        {"image": [None, IMAGE] * 2, "label": ["a", "b"] * 2},
        "In row 1 of /own.parquet, the image is unreadable; allowed",
    ),
    "numbers": (
        {"image": [1, 2], "label": ["a", "b"]},
        "column image of split 'train' is of type Value('int64'); allowed: a column of images",
    ),
    "no column of images": (
        {"picture": [1, 2], "label": ["a", "b"]},
        "image_column_name is None; allowed: one of the columns, picture, label; 0 are Image.",
    ),
    "no column of labels": (
        {"image": [1, 2], "y": ["a", "b"]},
        "label_column_name is None; allowed: one of the columns, image, y; 0 are ClassLabel.",
    ),
    "scores": (
        {"image": [IMAGE] * 2, "label": [0.5, 1.5]},
        "column label of task own_files is of type Value('float64'); allowed: class labels, integ",
    ),
    "no label": (
        {"image": [IMAGE] * 2, "label": ["a", None]},
        "In row 2 of /own.parquet, column label of task own_files is None; allowed",
    ),
}


def of_table(folder: Path, rows: dict[str, list]) -> list[str]:
    """The flags of a run on these rows, in own.parquet."""
    file = folder / "own.parquet"
    pandas.DataFrame(rows).to_parquet(file)
    argv = replaced(flags(folder), train_dir=None, validation_dir=None)
    return [*argv, "--train_file", str(file)]


@pytest.mark.parametrize("name", BAD_TABLES)
def test_tables_that_cannot_be_used(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, said = BAD_TABLES[name]
    argv = of_table(tmp_path, rows)
    argv += ["--validation_file", str(tmp_path / "own.parquet")]
    assert refused(tmp_path, monkeypatch, argv).startswith(said)


HELD_OUT = {
    "no image": (
        {"image": [*[GOOD] * 10, IMAGE, GOOD], "label": ["a", "b"] * 6},
        "In row 11 of /own.parquet, the image a.png is unreadable; allowed",
    ),
    "no label": (
        {"image": [GOOD] * 12, "label": ["a", "b", "c"] * 3 + ["a", "b", None]},
        "In row 12 of /own.parquet, column label of task own_files is None; allowed",
    ),
    "no labels": (
        {"image": ["a.png"] * 12, "label": [GOOD] * 12},
        "In row 1 of /own.parquet, column label of task own_files is",
    ),
}


@pytest.mark.parametrize("name", HELD_OUT)
def test_rows_are_numbered_as_in_their_file_where_a_share_of_them_is_held_out(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, said = HELD_OUT[name]
    argv = [*of_table(tmp_path, rows), "--train_val_split", "0.4"]
    assert refused(tmp_path, monkeypatch, argv).startswith(said)


@pytest.mark.parametrize(
    ("others", "said"),
    [
        (
            {"validation_dir": None},
            "train_val_split is None; allowed: a share without a split 'validation', else",
        ),
        (
            {"train_val_split": "0.3"},
            "train_val_split is 0.3; allowed: a share without a split 'validation', else",
        ),
        (
            {"train_val_split": "0.05", "validation_dir": None},
            "train_val_split is 0.05; allowed: a share that leaves rows of each class on both",
        ),
        ({"train_val_split": "1"}, "train_val_split is 1.0; allowed: above 0 and below 1"),
        (
            {"task_name": "digits"},
            "task_name is 'digits'; allowed: none beside train_dir",
        ),
        ({"train_dir": None}, "allowed: beside train_dir only"),
        (
            {"model_type": "gpt2", "config_overrides": None},
            "model_type is 'gpt2'; allowed: a type w",
        ),
        (
            {"model_type": "no", "config_overrides": None},
            "model_type is 'no'; allowed: a type that",
        ),
        (
            {"config_overrides": f"{VIT},num_channels=2"},
            "num_channels is 2; allowed: 1 (L), 3 (RGB",
        ),
        (
            {"image_processor_name": "finetune/demo/bert"},
            "image_processor_name is 'finetune/demo/b",
        ),
    ],
)
def test_flags_that_cannot_be_used(
    tmp_path: Path, others: dict, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = flags(tmp_path)
    given = {name: value for name, value in others.items() if f"--{name}" in argv}
    argv = replaced(argv, **given)
    for name in others.keys() - given.keys():
        argv += [f"--{name}", others[name]]
    assert refused(tmp_path, monkeypatch, argv).startswith(said)


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB"), (4, "RGBA")])
def test_images_of_every_mode_are_converted_to_the_models(
    tmp_path: Path, channels: int, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    argv = flags(tmp_path)
    for other in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK"):
        file = tmp_path / "train" / "cat" / f"{other}.tiff"
        Image.fromarray(pixels(7)).convert(other).save(file)
    with caplog.at_level(logging.INFO):
        image_classification.main(replaced(argv, config_overrides=f"{VIT},num_channels={channels}"))
    others = {"1", "L", "LA", "P", "RGB", "RGBA", "CMYK"} - {mode}
    (message,) = (r.message for r in caplog.records if "'train': images that are" in r.message)
    assert f"converted to {mode}: " in message
    assert {word.split(" of mode ")[1] for word in message.split(": ")[2].split(", ")} == others


def test_classes_that_a_split_lacks_are_no_fault(tmp_path: Path) -> None:
    argv = flags(tmp_path)
    shutil.rmtree(tmp_path / "validation" / "cat")
    assert image_classification.main(argv)["data"]["validation"]["rows"] == 10


def test_the_first_images_of_a_folder_are_of_many_classes(tmp_path: Path) -> None:
    argv = flags(tmp_path)
    save_folder(tmp_path / "many", 40, CLASSES[:3])
    argv = replaced(argv, train_dir=str(tmp_path / "many"), validation_dir=str(tmp_path / "many"))
    limits = ["--max_train_samples", "30", "--max_eval_samples", "30", "--max_train_steps", "1"]
    image_classification.main([*argv, *limits])
    lines = (tmp_path / "out" / "eval_predictions.tsv").read_text().splitlines()[1:]
    cells = {tuple(line.split("\t")[2::2]) for line in lines}
    assert cells == {("0", "cat"), ("1", "dog"), ("2", "emu")}
