"""Folders with a folder of images for each class, as `datasets` reads them under "imagefolder"."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from datasets import Dataset, DatasetDict, load_dataset
from datasets.packaged_modules.imagefolder.imagefolder import ImageFolder

from finetune.data.wording import listed, reason, refusal


def read(folders: Mapping[str, str | None]) -> DatasetDict:
    """The images of each split's folder, with the columns image and label.

    Raises ``Refused`` for a folder without images, or with a folder that has none.
    """
    return DatasetDict({name: _split(name, Path(p)) for name, p in folders.items() if p})


def refuse_as_data_set(folder: Path) -> None:
    """Raise ``Refused`` for a folder of images where one of the hub's layout is asked for."""
    has_table = (folder / "README.md").is_file() or any(folder.rglob("*.parquet"))
    if has_table or not any(map(_is_image, folder.rglob("*"))):
        return
    parts = {f"{name}_dir": folder / name for name in ("train", "validation")}
    parts = {flag: path for flag, path in parts.items() if path.is_dir()} or {"train_dir": folder}
    raise refusal(
        "dataset_name",
        str(folder),
        "a hub id, or a local folder of its layout; this one holds images",
        f"Give {' '.join(f'--{flag} {path}' for flag, path in parts.items())} instead.",
    )


def _split(name: str, folder: Path) -> Dataset:
    argument = f"{name}_dir"
    if not folder.is_dir():
        raise refusal(argument, str(folder), "a folder of images", "Check the path.")
    for path in filter(_is_image, folder.rglob("*")):
        if not path.exists():
            remedy = f"It is a link to {path.readlink()}, which does not exist: mend or remove it."
            raise refusal(argument, str(path), "a folder of images that are there", remedy)
    classes = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    empty = [p.name for p in classes if not any(map(_is_image, p.rglob("*")))]
    if not classes or empty:
        raise refusal(
            argument,
            str(folder),
            "a folder with a folder of images for each class; "
            + (f"{listed(empty)} have none" if empty else "it has no folders"),
            f"Images are known by their suffix: {listed(ImageFolder.EXTENSIONS)}.",
        )
    try:
        rows = load_dataset(
            "imagefolder",
            data_files={name: [f"{folder.resolve()}/**"]},
            split=name,
            drop_labels=False,
        )
    except Exception as error:  # of whatever a file's name or a metadata file lets happen
        raise refusal(
            argument,
            str(folder),
            "a folder that datasets reads as its imagefolder",
            f"Reading said: {reason(error)}",
        ) from None
    # The folder that an image lies in is its class to `datasets`, however deep.
    label = rows.features.get("label")
    others = set(getattr(label, "names", ())) - {path.name for path in classes}
    if others:
        raise refusal(
            argument,
            str(folder),
            "a folder with a folder of images for each class, and no folders in these; images lie "
            f"in {listed(sorted(others))} too",
            "Move them.",
        )
    rows.info.download_checksums = {
        str(folder.resolve()): {"num_bytes": sum(map(_size, folder.rglob("*"))), "checksum": None}
    }
    return rows


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in ImageFolder.EXTENSIONS


def _size(path: Path) -> int:
    return path.stat().st_size if _is_image(path) else 0
