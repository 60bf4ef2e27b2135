"""Morse code as sound: its signs, its sounds and the rows, the same for the same seed."""

from __future__ import annotations

import io
from itertools import pairwise

import numpy as np
import pytest
import soundfile

from tasks import morse


def test_units_by_hand() -> None:
    units = "".join(str(int(unit)) for unit in morse.keyed("et a"))
    assert units == "1" + "000" + "111" + "0000000" + "1" + "0" + "111"
    assert len(set(morse.CODE.values())) == len(morse.CODE) == 26


def test_rows_are_those_of_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRAIN_ROWS", "VALIDATION_ROWS", "TEST_ROWS"):
        monkeypatch.setattr(morse, name, 4)
    one, again, other = morse.build(), morse.build(), morse.build(seed=1)
    for name, split in one.items():
        assert split[:] == again[name][:] != other[name][:]
    texts = [text for split in one.values() for text in split["text"]]
    assert all(a != b for a, b in pairwise(texts))
    assert set("".join(texts)) <= {*morse.CODE, " "}
    assert all(1 <= len(text.split()) <= 2 for text in texts)
    assert all(2 <= len(word) <= 4 for text in texts for word in text.split())


def test_a_sound_is_its_text_keyed_as_a_tone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(morse, "NOISE", (90.0, 90.0))
    generator = np.random.default_rng(0)
    for text in ("sos", "the end"):
        file = io.BytesIO(morse.wav(morse.sound(text, generator)))
        samples, rate = soundfile.read(file)
        assert rate == morse.RATE
        size = round(0.005 * rate)
        loud = np.convolve(np.abs(samples), np.ones(size) / size, "same") > 0.02
        heard = np.flatnonzero(loud)
        assert heard[0] > 0
        assert heard[-1] < len(samples) - 1
        units = morse.keyed(text)
        length = (heard[-1] + 1 - heard[0]) / len(units)
        assert length / rate == pytest.approx(0.03, abs=0.012)
        middles = heard[0] + ((np.arange(len(units)) + 0.5) * length).astype(int)
        assert (loud[middles] == units.astype(bool)).all()


def test_noise_is_as_much_below_the_tone_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(morse, "NOISE", (6.0, 6.0))
    monkeypatch.setattr(morse, "LOUDNESS", (0.1, 0.1))
    monkeypatch.setattr(morse, "keyed", lambda text: np.repeat([1.0, 0.0], 500))
    samples = morse.sound("", np.random.default_rng(0))
    half = len(samples) // 2
    noise = np.mean(samples[-half + 500 :] ** 2)
    tone = np.mean(samples[500 : half - 500] ** 2) - noise
    assert 10 * np.log10(tone / noise) == pytest.approx(6.0, abs=0.5)
