"""One file that a person brings: that it is there, can be read, and is of the kind that it says."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from finetune.data.wording import Words, cell, reason, refusal

CHUNK = 1 << 24  # bytes that are looked at together
BOMS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
MAGIC = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip or Excel",
    b"BZh": "bzip2",
    b"\x28\xb5\x2f\xfd": "zstandard",
    b"\xfd7zXZ": "xz",
    b"PAR1": "parquet",
    b"ARROW1": "Arrow",
    b"%PDF": "PDF",
}


def kind(path: str | Path, readers: Mapping[str, str]) -> str | None:
    """The reader of a file by its suffix, in either case; None where no reader has it."""
    return readers.get(Path(path).suffix.lower())


def check(argument: str, path: str | Path, readers: Mapping[str, str]) -> None:
    """Raise ``Refused`` unless this is a file with bytes that one of the readers reads."""
    place, allowed = Path(path), f"an existing file, {', '.join(readers)}"
    if place.is_dir():
        remedy = "It is a directory: name a file in it, or give a folder as dataset_name."
        raise refusal(argument, str(path), allowed, remedy)
    if place.is_symlink() and not place.exists():
        remedy = f"It is a link to {place.readlink()}, which does not exist: mend the link."
        raise refusal(argument, str(path), allowed, remedy)
    if not place.exists():
        remedy = "It does not exist: check the path, or make the file."
        raise refusal(argument, str(path), allowed, remedy)
    if not place.is_file():
        remedy = "It is no regular file: write what it gives into one."
        raise refusal(argument, str(path), allowed, remedy)
    if kind(path, readers) is None:
        remedy = "Convert it, or give it the suffix of what it is."
        raise refusal(argument, str(path), allowed, remedy)
    if place.stat().st_size == 0:
        raise refusal(argument, str(path), "a file with rows; it is empty", "Add rows.")
    _check_readable(argument, place)


def check_content(path: Path, reader: str) -> None:
    """Raise ``Refused`` unless the bytes are what the reader reads: UTF-8 text, or parquet."""
    _check_readable("the file", path)
    if reader == "parquet":
        check_parquet(path)
    else:
        check_utf8(path)


def check_parquet(path: Path, *, whole: bool = False) -> None:
    """Raise ``Refused`` if it is no parquet file; ``whole`` reads its rows too."""
    try:
        with pq.ParquetFile(path) as file:
            for _ in file.iter_batches() if whole else ():
                pass
    except (pa.ArrowException, OSError, ValueError) as error:
        remedy = f"Write it again; reading it said: {reason(error)}"
        raise refusal("the file", str(path), "a whole parquet file", remedy) from None


def check_utf8(path: Path) -> None:
    """Raise ``Refused`` unless the file is text in UTF-8, and say in which line it is not."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    line = 1
    with path.open("rb") as stream:
        _check_start(path, stream.read(CHUNK))
        stream.seek(0)
        while chunk := stream.read(CHUNK):
            try:
                decoder.decode(chunk, final=len(chunk) < CHUNK)
            except UnicodeDecodeError as error:
                seen, at = bytes(error.object), error.start
                found = seen[max(0, at - 10) : at + 10].rpartition(b"\n")[-1] or seen[at : at + 1]
                where = line + seen[:at].count(b"\n")
                raise _not_utf8(path, where, found) from None
            line += chunk.count(b"\n")


def _check_start(path: Path, start: bytes) -> None:
    for mark, encoding in BOMS.items():
        if start.startswith(mark):
            raise _other_encoding(path, encoding)
    for mark, what in MAGIC.items():
        if start.startswith(mark):
            remedy = "Unpack or convert it, or give it the suffix of what it is."
            raise refusal("the file", str(path), f"text in UTF-8; it begins as {what} does", remedy)
    if b"\0" in start:
        raise _other_encoding(path, "UTF-16")


def _other_encoding(path: Path, encoding: str) -> Exception:
    return refusal(
        "the file",
        str(path),
        f"text in UTF-8; it seems to be in {encoding}, or to be no text",
        f"Convert it: {_iconv(path, encoding)}",
    )


def _not_utf8(path: Path, line: int, found: bytes) -> Exception:
    return refusal(
        f"line {line} of {path}",
        cell(found),
        "text in UTF-8",
        f"If it is Latin-1 or Windows-1252, convert it: {_iconv(path, 'WINDOWS-1252')}",
    )


def _iconv(path: Path, encoding: str) -> str:
    return f"iconv -f {encoding} -t UTF-8 {path.name} > utf8{path.suffix}"


def _check_readable(argument: str, path: Path) -> None:
    try:
        path.open("rb").close()
    except OSError as error:
        remedy = f"Opening it said: {Words(error.strerror)}. Check its permissions (chmod +r)."
        raise refusal(argument, str(path), "a file that can be read", remedy) from None
