"""One recording: its bytes, from a table's cell or a file, and its samples at a model's rate."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

OPEN_ENDED = (8, 2**32 + 7)  # lengths that programs write who do not know it: 0, and the greatest
# Of integers that were written as floats. Squares of far greater samples overflow, and a feature
# extractor would make silence of them.
LOUDEST = 2.0**31
Sound = Mapping[str, Any]  # as datasets' column of audio stores it: bytes, or None and a path


def content(sound: Sound) -> bytes:
    """The bytes of the recording's file. Raises ``OSError`` if there is none, or it is not read."""
    if sound["bytes"] is None and sound["path"] is None:
        raise FileNotFoundError("The cell is empty")
    found: bytes | None = sound["bytes"]
    return Path(sound["path"]).read_bytes() if found is None else found


def samples(found: bytes, rate: int) -> np.ndarray:
    """The samples of a file, float32 of shape (samples,), with so many a second.

    Channels are averaged; another rate is changed by a polyphase filter, which cuts off what the
    new one cannot hold.

    Raises:
        RuntimeError: libsndfile does not know the format, or finds it broken.
        ValueError: a wav file is cut off, or some samples are NaN, infinite or beyond any scale.
    """
    import soundfile
    from scipy.signal import resample_poly

    _check_length(found)
    channels, own = soundfile.read(io.BytesIO(found), dtype="float32", always_2d=True)
    wave = channels.mean(axis=1)
    if not np.isfinite(wave).all():
        raise ValueError("it holds samples that are NaN or infinite")
    if (most := np.abs(wave).max(initial=0)) > LOUDEST:
        raise ValueError(f"it holds a sample of {most:g}, where full scale is 1")
    if own == rate or not len(wave):
        return wave
    common = math.gcd(own, rate)
    return resample_poly(wave, rate // common, own // common).astype(np.float32)


def _check_length(found: bytes) -> None:
    """Of a wav file that is cut off libsndfile reads what is there without a word."""
    said = int.from_bytes(found[4:8], "little") + 8  # what comes after the number itself
    if found[:4] == b"RIFF" and said not in OPEN_ENDED and len(found) + 1 < said:
        raise ValueError(f"it is cut off: {len(found)} of the {said} bytes that its header says")
