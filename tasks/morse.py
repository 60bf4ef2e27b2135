"""Morse code as sound, against its text: speech recognition where there is no speech.

Each row is a few random words, keyed as a tone whose pitch, speed, loudness and noise are drawn for
it. The rows are made on the fly, and are the same for the same seed.
"""

from __future__ import annotations

import io
import wave

import numpy as np
from datasets import Dataset, DatasetDict, Features, Value

TRAIN_ROWS, VALIDATION_ROWS, TEST_ROWS = 3000, 300, 200
RATE = 2000  # samples a second
PITCH = (300.0, 700.0)  # hertz
UNIT = (0.02, 0.04)  # seconds of a dot: 30 to 60 words a minute
LOUDNESS = (0.1, 0.4)  # of the tone's amplitude, where 1 is the loudest that a file holds
NOISE = (3.0, 20.0)  # decibels that the tone is above white noise
EDGE = 0.004  # seconds in which the tone rises and falls
WORDS, LETTERS = (1, 2), (2, 4)  # of a row, of a word
SIGNS = (
    *(".-", "-...", "-.-.", "-..", ".", "..-.", "--.", "....", "..", ".---", "-.-", ".-..", "--"),
    *("-.", "---", ".--.", "--.-", ".-.", "...", "-", "..-", "...-", ".--", "-..-", "-.--", "--.."),
)
CODE = dict(zip("abcdefghijklmnopqrstuvwxyz", SIGNS, strict=True))
# As datasets' column of audio stores it, which of its own accord needs torchcodec.
FEATURES = Features(
    {"audio": {"bytes": Value("binary"), "path": Value("string")}, "text": Value("string")}
)


def build(*, seed: int = 0) -> DatasetDict:
    """Return the splits, with the columns ``audio`` (a wav file's bytes) and ``text``."""
    counts = {"train": TRAIN_ROWS, "validation": VALIDATION_ROWS, "test": TEST_ROWS}
    streams = np.random.SeedSequence(seed).spawn(len(counts))
    return DatasetDict(
        {
            name: rows(count, np.random.default_rng(stream))
            for (name, count), stream in zip(counts.items(), streams, strict=True)
        }
    )


def rows(count: int, generator: np.random.Generator) -> Dataset:
    """Return that many rows."""
    texts = [text(generator) for _ in range(count)]
    sounds = [{"bytes": wav(sound(each, generator)), "path": None} for each in texts]
    return Dataset.from_dict({"audio": sounds, "text": texts}, features=FEATURES)


def text(generator: np.random.Generator) -> str:
    """Return random words of random letters."""
    alphabet = list(CODE)
    lengths = generator.integers(
        *LETTERS, size=generator.integers(*WORDS, endpoint=True), endpoint=True
    )
    return " ".join("".join(generator.choice(alphabet, length)) for length in lengths)


def keyed(text: str) -> np.ndarray:
    """Return whether the key is down in each unit of time, as 1.0 or 0.0.

    A dot is one unit and a dash three; one unit parts the signs of a letter, three part letters,
    and seven words.
    """
    signs = {".": "1", "-": "111"}
    words = (
        "000".join("0".join(signs[sign] for sign in CODE[letter]) for letter in word)
        for word in text.split()
    )
    return np.array([float(unit) for unit in "0000000".join(words)])


def sound(text: str, generator: np.random.Generator) -> np.ndarray:
    """Return the text as samples from -1 to 1, of shape (samples,), with some silence around."""
    unit = round(generator.uniform(*UNIT) * RATE)
    silence = generator.integers(unit, 4 * unit, size=2)
    edge = np.hanning(2 * round(EDGE * RATE) + 1)
    envelope = np.convolve(np.repeat(keyed(text), unit), edge / edge.sum(), "same")
    envelope = np.pad(envelope, silence)
    times = np.arange(len(envelope)) / RATE
    phase = 2 * np.pi * (generator.uniform(*PITCH) * times + generator.uniform())
    power = 10 ** (-generator.uniform(*NOISE) / 10) / 2  # a tone of amplitude 1 has 1/2
    noise = generator.standard_normal(len(envelope)) * np.sqrt(power)
    samples = generator.uniform(*LOUDNESS) * (envelope * np.sin(phase) + noise)
    return samples.clip(-1, 1)


def wav(samples: np.ndarray) -> bytes:
    """Return the samples as a wav file of 16 bits."""
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((samples * 32767).round().astype("<i2").tobytes())
    return stream.getvalue()
