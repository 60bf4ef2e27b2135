"""Training images that are read where they lie: which rows, in which order, and what is refused."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import warm
from datasets import ClassLabel, Dataset, Features, Image, Value
from glue_runs import written
from hub_server import HubServer
from image_runs import CLASSES, VIT, pixels, replaced, resumed_as_if_never_stopped
from PIL import Image as Pillow

import tasks
from finetune import image_classification
from finetune.data import images as data
from finetune.data import sources, streaming
from finetune.errors import Refused

CARD = """---
configs:
- config_name: default
  data_files:
  - {split: train, path: data/train-*}
  - {split: validation, path: data/validation-*}
---
"""
LABELLED = Features(image=Image(), label=ClassLabel(names=list(CLASSES)))
COUNTS = (7, 1, 10)  # rows of the training files, in row groups of 3
NAMES = {"image": "image", "label": "labels"}


def save_parquet(folder: Path, features: Features = LABELLED) -> Path:
    """A folder of the hub's layout: 18 training rows in three files, 12 to evaluate on."""
    (folder / "data").mkdir(parents=True)
    (folder / "README.md").write_text(CARD)
    start = 0
    for i, count in enumerate(COUNTS):
        rows = made(range(start, start + count), features)
        rows.to_parquet(folder / "data" / f"train-{i}.parquet", batch_size=3)
        start += count
    made(range(100, 112), features).to_parquet(folder / "data" / "validation-0.parquet")
    return folder


def made(numbers: Sequence[int], features: Features = LABELLED) -> Dataset:
    """Rows with an image of its own for each number."""
    images = [Pillow.fromarray(pixels(number)) for number in numbers]
    labels = [number % len(CLASSES) for number in numbers]
    if isinstance(feature := features["label"], ClassLabel):
        labels = feature.str2int([CLASSES[label] for label in labels])
    return Dataset.from_dict({"image": images, "label": labels}, features=features)


def flags(folder: Path, out: Path, *others: str) -> list[str]:
    """Flags of a short run that streams the rows of such a folder."""
    return [
        *("--dataset_name", str(folder), "--streaming", "--shuffle_buffer_size", "6"),
        *("--model_type", "vit", "--config_overrides", VIT, "--output_dir", str(out)),
        *("--per_device_train_batch_size", "4", "--num_train_epochs", "1", *others),
    ]


def files_of(folder: Path) -> list[str]:
    return sorted(str(path) for path in (folder / "data").glob("train-*"))


def test_every_row_is_that_of_the_files(tmp_path: Path) -> None:
    rows = streaming.opened(files_of(save_parquet(tmp_path)))
    assert rows.sizes == [3, 3, 1, 1, 3, 3, 3, 1]
    found = rows.first(None, NAMES, 6)
    read = [pickle.loads(pickle.dumps(found))[row] for row in range(len(found))]
    assert [row["labels"] for row in read] == [n % len(CLASSES) for n in range(sum(COUNTS))]
    known = made(range(sum(COUNTS))).cast_column("image", Image(decode=False))["image"]
    assert [row["image"]["bytes"] for row in read] == [row["bytes"] for row in known]
    assert rows.row_name(0) == f"row 1 of {files_of(tmp_path)[0]}"
    assert rows.row_name(17) == f"row 10 of {files_of(tmp_path)[2]}"
    assert rows.sample()["label"] == [0]


def test_the_first_rows_are_a_prefix_with_a_digest_of_its_own(tmp_path: Path) -> None:
    whole = streaming.opened(files_of(save_parquet(tmp_path)))
    first = whole.first(9, NAMES, 4)
    assert first.sizes == [3, 3, 1, 1, 1]
    assert [first[row]["labels"] for row in range(9)] == [n % len(CLASSES) for n in range(9)]
    assert whole.first(99, NAMES, 4).sizes == whole.sizes
    assert whole.digest == streaming.opened(files_of(tmp_path)).digest != first.digest
    made(range(50, 57)).to_parquet(tmp_path / "data" / "train-0.parquet", batch_size=3)
    assert streaming.opened(files_of(tmp_path)).digest != whole.digest


def write_group(path: Path, labels: Sequence[int], images: Sequence[bytes]) -> str:
    """One row group of uncompressed bytes, as long whatever is in it."""
    stored = pa.array([{"bytes": image, "path": None} for image in images])
    table = pa.table({"image": stored, "label": pa.array(labels)})
    pq.write_table(table.cast(LABELLED.arrow_schema), path, compression="none")
    return str(path)


def test_a_digest_tells_rows_of_equal_size_and_equal_statistics_apart(tmp_path: Path) -> None:
    """Labels that change places, and images."""
    labels, images = [0, 1] * 50, [bytes([i % 9]) * 5000 for i in range(100)]
    swapped, turned = [1 - label for label in labels], images[::-1]
    first, other, drawn = (
        write_group(tmp_path / f"{name}.parquet", *content)
        for name, content in {
            "first": (labels, images),
            "labels": (swapped, images),
            "images": (labels, turned),
        }.items()
    )
    assert len({Path(path).stat().st_size for path in (first, other, drawn)}) == 1
    digests = [streaming.opened([path]).digest for path in (first, other, drawn)]
    assert len(set(digests)) == 3
    moved = shutil.copy(first, tmp_path / "moved.parquet")
    assert streaming.opened([str(moved)]).digest == digests[0]


def test_an_epoch_reads_each_row_once_from_windows_of_row_groups() -> None:
    torch.manual_seed(5)
    sizes, window = [3, 3, 1, 1, 3, 3, 3, 1], 6
    order = streaming.InWindows(sizes, window)
    first = list(order)
    assert sorted(row for row, _ in first) == list(range(sum(sizes)))
    assert list(order) == first
    assert len({number for _, number in first}) == len(first) == len(order)
    order.set_epoch(1)
    assert list(order) != first
    torch.manual_seed(6)
    assert list(streaming.InWindows(sizes, window)) != first


def test_no_more_rows_are_held_than_a_window_and_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each row group is read once in an epoch."""
    rows = streaming.opened(files_of(save_parquet(tmp_path))).first(None, NAMES, 5)
    read = []
    table = streaming.Streamed._table

    def counted(self: streaming.Streamed, group: streaming.Group, columns: object) -> object:
        read.append((group.file, group.number))
        return table(self, group, columns)

    monkeypatch.setattr(streaming.Streamed, "_table", counted)
    for row, _ in streaming.InWindows(rows.sizes, 5):
        rows[row]
        assert sum(map(len, rows._held.values())) <= 5 + 3
    assert len(read) == len(set(read)) == len(rows.sizes)


def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    save_parquet(tmp_path / "hub")
    sources = ["--dataset_name", str(tmp_path / "hub"), "--streaming", "--shuffle_buffer_size", "6"]
    resumed_as_if_never_stopped(tmp_path, *sources, without=("train_dir", "validation_dir"))
    data = written(tmp_path)["data"]
    assert data["train"]["rows"] == 18
    assert set(data["train"]["files"]) == set(files_of(tmp_path / "hub"))
    assert data["validation"]["rows"] == 12


@pytest.mark.full
def test_a_hubs_training_files_are_read_in_parts(tmp_path: Path) -> None:
    """Without being fetched; the validation split is, and gives the same as from the disk."""
    folder = save_parquet(tmp_path / "hub")
    local = image_classification.main(flags(folder, tmp_path / "local"))
    with HubServer() as hub:
        files = {
            str(path.relative_to(folder)): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }
        hub.repositories["user/animals"] = [("a" * 40, files)]
        done = subprocess.run(
            [
                warm.python("finetune"),
                "finetune/image_classification.py",
                *replaced(flags(folder, tmp_path / "remote"), dataset_name="user/animals"),
            ],
            cwd=Path(__file__).parents[2],
            env=hub.environment(tmp_path / "home") | {"ACCELERATE_USE_CPU": "true"},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    remote = json.loads((tmp_path / "remote" / "all_results.json").read_text())
    assert remote["eval_loss"] == local["eval_loss"]
    assert remote["train_loss"] == local["train_loss"]
    assert remote["data"]["train"]["digest"] == digest_by_blobs(folder)
    assert all("user/animals@" + "a" * 40 in name for name in remote["data"]["train"]["files"])
    kept = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    training = {len(files[f"data/train-{i}.parquet"]) for i in range(3)}
    assert not any(path.stat().st_size in training for path in kept)


def digest_by_blobs(folder: Path) -> str:
    """A digest of what a hub names the content of the training files by."""
    rows = streaming.opened(files_of(folder))
    total = hashlib.sha256(repr([(group.number, group.rows) for group in rows.groups]).encode())
    for name in files_of(folder):
        total.update(hashlib.sha1(Path(name).read_bytes()).hexdigest().encode())
    return total.hexdigest()[:16]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_hubs_files_that_name_the_classes_differently_are_refused(
    tmp_path: Path, is_streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of two splits, which `datasets` reads with the names of one."""
    turned = Features(image=Image(), label=ClassLabel(names=list(CLASSES[::-1])))
    files = {split: [str(tmp_path / f"{split}.parquet")] for split in ("train", "validation")}
    for (path,), features in zip(files.values(), (LABELLED, turned), strict=True):
        made(range(4), features).to_parquet(path)
    config, info = SimpleNamespace(data_files=files), SimpleNamespace(features=LABELLED)
    builder = SimpleNamespace(config=config, info=info, cache_dir=str(tmp_path / "none"))
    monkeypatch.setattr(sources, "load_dataset_builder", lambda *_, **__: builder)
    monkeypatch.setattr(sources, "load_dataset", pytest.fail)
    found = sources.find("user/animals", tasks.get("imagenet-100"))
    reader = partial(streaming.streamed, "train") if is_streamed else sources.read_files
    with pytest.raises(
        Refused, match=r"order of the classes of column label in .*validation\.parq"
    ):
        reader(found)


def load(argv: list[str], *, predict: bool = False) -> tuple[tasks.Task, data.Rows]:
    return data.load(image_classification.SCHEMA.parse(argv).data, predict)


def without_card(folder: Path) -> list[str]:
    """Flags of such a folder once its card is gone."""
    (folder / "README.md").unlink(missing_ok=True)
    return replaced(flags(folder, folder / "out"), dataset_name=str(folder / "data"))


def test_own_files_and_a_folder_without_a_card_stream_too(tmp_path: Path) -> None:
    folder = save_parquet(tmp_path / "hub")
    _, with_card = load(flags(folder, tmp_path / "out"))
    _, bare = load(without_card(folder))
    assert bare["train"].digest == with_card["train"].digest
    own = replaced(flags(folder, tmp_path / "out"), dataset_name=None)
    validation = str(folder / "data" / "validation-0.parquet")
    own += ["--train_file", files_of(folder)[2], "--validation_file", validation]
    assert len(load(own)[1]["train"]) == 10


def test_a_row_that_cannot_be_used_is_named_when_it_is_read(tmp_path: Path) -> None:
    """Words are the classes that a card names; a column that a file lacks has no labels."""
    path = tmp_path / "rows.parquet"
    rows = made(range(3)).cast_column("image", Image(decode=False)).to_list()
    rows[1]["image"]["bytes"] = b"hello"
    inputs = data.Inputs(None, "RGB", (8, 8), range(len(CLASSES)))

    def read(columns: dict[str, list]) -> data.Images:
        stored = pa.array([row["image"] for row in rows])
        pq.write_table(pa.table({"image": stored, **columns}), path)
        streamed = streaming.opened([str(path)], LABELLED).first(None, NAMES, 6)
        return data.Images("train", streamed, inputs)

    split = read({"label": ["dog", "cat", None]})
    assert split[0]["labels"] == CLASSES.index("dog")
    for row, message in (
        (1, "the image is unreadable; allowed: an"),
        (2, "the label is None; all"),
    ):
        with pytest.raises(Refused, match=rf"^In row {row + 1} of {path}, {message}"):
            split[row]
    with pytest.raises(Refused, match=rf"^In row 1 of {path}, the label is None; allowed"):
        read({})[0]
    with pytest.raises(Refused, match=r"rows\.parquet is unreadable.*horse"):
        read({"label": ["horse"] * 3})[0]


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("names", [CLASSES[::-1], (*CLASSES, "horse")])
def test_files_that_name_the_classes_differently_are_refused(
    tmp_path: Path, is_streamed: bool, names: tuple[str, ...]
) -> None:
    folder = save_parquet(tmp_path / "hub")
    other = Features(image=Image(), label=ClassLabel(names=list(names)))
    made(range(8), other).to_parquet(folder / "data" / "train-2.parquet")
    message = (
        rf"column label in .*train-2\.parquet is {', '.join(names)}; allowed: that of .*train-0"
    )
    for make in (lambda: flags(folder, tmp_path / "out"), lambda: without_card(folder)):
        argv = make()
        if not is_streamed:
            argv.remove("--streaming")
            argv = replaced(argv, shuffle_buffer_size=None)
        with pytest.raises(Refused, match=message):
            load(argv)


def test_a_validation_split_may_order_the_classes_otherwise(tmp_path: Path) -> None:
    """Its labels are the training rows' by name."""
    folder = save_parquet(tmp_path / "hub")
    argv = without_card(folder)
    _, rows = load(argv)
    turned = Features(image=Image(), label=ClassLabel(names=list(CLASSES[::-1])))
    made(range(100, 112), turned).to_parquet(folder / "data" / "validation-0.parquet")
    assert load(argv)[1]["validation"]["labels"][:] == rows["validation"]["labels"][:]


def test_the_test_split_is_not_read_without_predictions(tmp_path: Path) -> None:
    folder = save_parquet(tmp_path / "hub")
    entry = "  - {split: test, path: data/t.parquet}\n---\n"
    (folder / "README.md").write_text(CARD.removesuffix("---\n") + entry)
    (folder / "data" / "t.parquet").write_bytes(b"no parquet")
    argv = flags(folder, tmp_path / "out")
    assert set(load(argv)[1]) == {"train", "validation"}
    with pytest.raises(Refused, match=r"t\.parquet"):
        load(argv, predict=True)


def no_names(folder: Path) -> None:
    shutil.rmtree(folder)
    save_parquet(folder, Features(image=Image(), label=Value("int64")))


def cut_off(folder: Path) -> None:
    file = folder / "data" / "train-2.parquet"
    file.write_bytes(file.read_bytes()[:-20])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (no_names, r"is of type Value\('int64'\); allowed: datasets' ClassLabel with streaming"),
        (cut_off, r"train-2\.parquet is unreadable; allowed: whole files"),
    ],
)
def test_what_cannot_be_streamed(
    tmp_path: Path, change: Callable[[Path], None], message: str
) -> None:
    folder = save_parquet(tmp_path / "hub")
    change(folder)
    with pytest.raises(Refused, match=message):
        load(flags(folder, tmp_path / "out"))


def test_a_task_that_makes_its_data_is_read_whole(tmp_path: Path) -> None:
    argv = replaced(flags(tmp_path, tmp_path / "out", "--task_name", "digits"), dataset_name=None)
    assert len(load(argv)[1]["train"]) == 1197
