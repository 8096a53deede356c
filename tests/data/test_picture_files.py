"""Picture files: the rows of a manifest are kept together, and apart, as they should be."""

import json
from pathlib import Path

import numpy as np
import pytest

from heddle.data.pictures import ImageSource
from heddle.data.sources import DocumentCounter

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
