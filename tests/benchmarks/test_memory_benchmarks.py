"""The benchmarks of memory: nothing measured on was chosen on or learned, and each row differs in what it says."""

import gzip
import json
import lzma
import random
from pathlib import Path

import pytest
from scripts import script

knn_lm, long_texts = script("knn_lm"), script("long_texts")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "lm-wikitext2").mkdir()
    for side, count in (("train", 4), ("valid", 6)):
        text = "".join(f" = {side} {n} = \n \n words of {n} . \n = = a part = = \n more . \n \n" for n in range(count))
        with gzip.open(tmp_path / "lm-wikitext2" / f"wiki.{side}.tokens.gz", "wt") as file:
            file.write(text)
    (tmp_path / "lm-gutenberg").mkdir()
    for name, count in (("train-00", 3), ("valid", 2)):
        with lzma.open(tmp_path / "lm-gutenberg" / f"{name}.jsonl.xz", "wt") as file:
            file.writelines(json.dumps({"text": f"{name} {n} " + "so it went on. " * 90}) + "\n" for n in range(count))
    return tmp_path


def test_articles_and_halves_are_apart(data: Path, tmp_path: Path) -> None:
    knn_lm.tables(data, tmp_path / "out")
    texts = {
        n: knn_lm.read(tmp_path / "out" / "wikitext" / f"{n}.jsonl") for n in ("train", "chosen_on", "measured_on")
    }
    assert {name: len(found) for name, found in texts.items()} == {"train": 4, "chosen_on": 3, "measured_on": 3}
    assert all(one.startswith("= ") and one.count("a part") == 1 for found in texts.values() for one in found)
    assert not set(texts["chosen_on"]) & set(texts["measured_on"])
    first, second = (knn_lm.read(tmp_path / "out" / "gutenberg" / f"{n}_on.jsonl") for n in ("chosen", "measured"))
    assert [a + b for a, b in zip(first, second, strict=True)] == list(knn_lm.books(data / "lm-gutenberg", "valid"))


def test_training_texts_hide_numbers_and_validation_texts_do_not(data: Path, tmp_path: Path) -> None:
    long_texts.tables(data, tmp_path / "out")
    texts = knn_lm.read(tmp_path / "out" / "texts" / "train.jsonl")
    hidden = [text for text in texts if "pass key" in text]
    assert hidden and all(text.rsplit(" ", 1)[1] in text.rsplit(" ", 1)[0] for text in hidden)
    assert "pass key" not in (tmp_path / "out" / "texts" / "valid.jsonl").read_text()
    assert list(long_texts.passkeys("so it went. " * 50, random.Random(1)))


def test_rows_differ_in_their_positions_alone() -> None:
    given = {"model.width": 64, "rows.length": 32, "training.batch": 4}
    every = {kind: long_texts.settings_of(kind, 0, given) for kind in long_texts.TRAINED}
    plain = [{k: v for k, v in every[kind].items() if k not in ("model.position", "name")} for kind in list(every)[:5]]
    assert all(one == plain[0] for one in plain)
    segments = every["transformer_xl"]
    assert segments["rows"] == {"kind": "streams", "length": 16, "lanes": 4} and segments["model.memory"] == 16
    assert every["lstm"]["model"] == "lstm_lm" and "model.heads" not in every["lstm"]
