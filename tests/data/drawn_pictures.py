"""Pictures for tests: coloured shapes with captions, drawn into folders; clips of a shape that moves."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SIDE = 16
COLOURS = {"red": (220, 30, 30), "green": (30, 180, 30), "blue": (30, 30, 220)}
SHAPES = ("square", "ring")
MOVES = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}


def drawn(colour: str, shape: str, place: tuple[int, int], side: int = SIDE) -> NDArray[np.uint8]:
    """Return a picture of a shape of 8 by 8 pixels on white."""
    found = np.full((side, side, 3), 255, np.uint8)
    row, column = place
    found[row : row + 8, column : column + 8] = COLOURS[colour]
    if shape == "ring":
        found[row + 2 : row + 6, column + 2 : column + 6] = 255
    return found


def write_images(folder: Path, count: int = 60, seed: int = 0, classes: bool = False) -> Path:
    """Write pictures with two captions beside each or, as classes, in folders by their shape."""
    from PIL import Image

    draw = np.random.default_rng(seed)
    for number in range(count):
        colour, shape = list(COLOURS)[draw.integers(3)], SHAPES[draw.integers(2)]
        place = tuple(draw.integers(0, SIDE - 8, 2).tolist())
        own = folder / shape if classes else folder
        own.mkdir(parents=True, exist_ok=True)
        Image.fromarray(drawn(colour, shape, place)).save(own / f"{number:03}.png")
        if not classes:
            (own / f"{number:03}.txt").write_text(f"a {colour} {shape}\nthis {shape} is {colour}\n")
    return folder


def write_videos(folder: Path, count: int = 24, seed: int = 0, frames: int = 6) -> Path:
    """Write clips as animated GIF, arrays and folders of frames in turn, with a caption beside each."""
    from PIL import Image

    draw = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        colour, move = list(COLOURS)[draw.integers(3)], list(MOVES)[draw.integers(4)]
        length = frames - int(draw.integers(3))
        down, across = MOVES[move]
        clip = np.stack([drawn(colour, "square", (4 + down * t // 2, 4 + across * t // 2)) for t in range(length)])
        name = folder / f"{number:03}"
        pictures = [Image.fromarray(frame) for frame in clip]
        if number % 3 == 0:
            pictures[0].save(f"{name}.gif", save_all=True, append_images=pictures[1:])
        elif number % 3 == 1:
            np.save(f"{name}.npy", clip)
        else:
            name.mkdir()
            for at, picture in enumerate(pictures):
                picture.save(name / f"{at}.png")
        (folder / f"{number:03}.txt").write_text(f"a {colour} square moves {move}\n")
    return folder


def write_clips_with_sound(folder: Path, count: int = 12, seed: int = 0) -> Path:
    """Write arrays of grey frames with a sound of the same name, and words that both tell."""
    import wave

    draw, words = np.random.default_rng(seed), ("one", "two")
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        word, length = int(draw.integers(2)), 8 + int(draw.integers(4))
        frames = np.full((length, 32, 64), 40, np.uint8)
        frames[:, :, 32 * word : 32 * word + 32] = 200
        np.save(folder / f"{number:03}.npy", frames)
        times = np.arange(640 * length) / 16_000
        sound = 0.3 * np.sin(2 * np.pi * (300 + 600 * word) * times)
        with wave.open(str(folder / f"{number:03}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(16_000)
            file.writeframes((sound * 32767).astype("<i2").tobytes())
        (folder / f"{number:03}.txt").write_text(f"{words[word]} {number}\n")
    return folder
