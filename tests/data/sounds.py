"""Sounds for tests: letters as tones, written as WAV files with a text beside each."""

import wave
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

RATE = 8000
LETTERS = "abcd"


def tones(text: str, seed: int = 0, rate: int = RATE) -> NDArray[np.float64]:
    """Return a tone for each letter, of a length of its own, with silence after it and a little noise."""
    draw = np.random.default_rng([seed, *text.encode()])
    pieces = []
    for letter in text:
        times = np.arange(int(rate * draw.uniform(0.08, 0.12))) / rate
        pieces += [0.4 * np.sin(2 * np.pi * (400 + 500 * LETTERS.index(letter)) * times), np.zeros(rate // 25)]
    sound = np.concatenate(pieces)
    return sound + draw.normal(0, 0.01, len(sound))


def write_wav(path: Path, sound: NDArray[np.float64], rate: int = RATE, channels: int = 1, size: int = 2) -> Path:
    """Write samples between -1 and 1 as a WAV file of whole numbers of some bytes."""
    whole = np.round(np.repeat(np.clip(sound, -1, 0.999), channels) * 2 ** (8 * size - 1)).astype(np.int64)
    raw = (whole + 128).astype(np.uint8).tobytes() if size == 1 else b""
    if size > 1:
        raw = whole.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :size].tobytes()
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(size)
        file.setframerate(rate)
        file.writeframes(raw)
    return path


def words(count: int, seed: int = 0) -> list[str]:
    """Draw words of two to four letters."""
    draw = np.random.default_rng(seed)
    return ["".join(draw.choice(list(LETTERS), size=draw.integers(2, 5))) for _ in range(count)]


def write_folder(folder: Path, count: int, seed: int = 0) -> list[str]:
    """Write a folder of sounds, each with its text beside it; return the texts."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = words(count, seed)
    for number, text in enumerate(texts):
        write_wav(folder / f"{number:03}.wav", tones(text, number))
        (folder / f"{number:03}.txt").write_text(text + "\n")
    return texts
