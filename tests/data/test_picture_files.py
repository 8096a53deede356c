"""Picture files: the rows of a manifest are kept together, and apart, as they should be."""

import json
import wave
from pathlib import Path

import numpy as np
import pytest

from heddle.data.media import AudioVisualConfig
from heddle.data.pictures import AudioVisualSource, ImageSource
from heddle.data.sources import DocumentCounter
from heddle.tasks.inputs import MediaInputs

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


def manifest(folder: Path, rows: list[dict[str, object]]) -> str:
    """Write a manifest."""
    (folder / "all.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return str(folder / "all.jsonl")


def test_all_captions_of_a_picture_in_a_manifest_stay_on_one_side_of_a_split(tmp_path: Path) -> None:
    for number, name in enumerate("ab"):
        Image.fromarray(np.full((8, 8), number, np.uint8)).save(tmp_path / f"{name}.png")
    path = manifest(tmp_path, [{"path": f"{name}.png", "text": text} for name in "ab" for text in ("one", "two")])
    found = list(ImageSource(path=path).documents(DocumentCounter()))
    first, second, third, fourth = (document.split_digest for document in found)
    assert first == second != third == fourth
    assert len({document.digest for document in found}) == 4


def parts_of_speech(folder: Path) -> AudioVisualSource:
    """Write a video of frames 0, 1, 2 ..., whose sound has the number of its frame, and name parts of it."""
    np.save(folder / "a.npy", np.repeat(np.arange(10, dtype=np.uint8), 64).reshape(10, 8, 8))
    with wave.open(str(folder / "a.wav"), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(np.repeat(np.arange(10), 640).astype("<i2").tobytes())
    rows = [{"path": "a.npy", "text": "x", "start": start, "length": length} for start, length in ((0, 4), (4, 5))]
    return AudioVisualSource(path=manifest(folder, [*rows, {"path": "a.npy", "text": "y", "start": 7}]), size=(8, 8))


def test_the_sound_of_a_part_of_a_video_is_that_of_its_frames(tmp_path: Path) -> None:
    for document, frames in zip(
        parts_of_speech(tmp_path).documents(DocumentCounter()), (range(4), range(4, 9), range(7, 10)), strict=True
    ):
        assert document.media is not None
        array = document.media.decode()
        np.testing.assert_array_equal(array[:, 0], frames)
        np.testing.assert_array_equal(array[:, 64:].copy().view("<i2"), np.repeat([[*frames]], 640, 0).T)


def test_parts_of_one_video_with_its_sound_are_several_inputs(tmp_path: Path) -> None:
    source = parts_of_speech(tmp_path)
    found = MediaInputs(source, AudioVisualConfig(size=(8, 8), channels=1)).find([source.path])
    assert [one.key[1:] for one in found] == [(0, 4), (4, 5), (7, None)]
