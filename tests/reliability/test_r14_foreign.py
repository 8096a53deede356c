"""R14 (others' models): mutated folders and GGUF files either load or are refused in a line; none crashes or swells."""

import json
import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from reliability.foreign import PRESETS, folder, gguf, join, llama_keys, llama_tensors, split
from reliability.test_r14_mutations import Tally, mutate_bytes, mutate_tree, peak

from heddle.checkpoints import find_source
from heddle.checkpoints.hf import load_model

MOST = 200  # megabytes that a mutant of a few kilobytes may take: tables for a million positions are an honest wish
NUMBERS = [-1, 0, 1, 2, 3, 7, 15, 17, 33, 1 << 12, 1 << 20, 1 << 31, 1 << 40, 10**18]

Harm = Callable[[dict[str, bytes], random.Random], dict[str, bytes]]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Let a warning for each key that is not understood go unheard."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def in_config(files: dict[str, bytes], draw: random.Random) -> dict[str, bytes]:
    """Change one value somewhere in the config: to something hostile, or to another number."""
    config = json.loads(files["config.json"])
    if draw.random() < 0.5:
        name = draw.choice([key for key, value in config.items() if isinstance(value, int)])
        config[name] = draw.choice(NUMBERS)
    else:
        config = mutate_tree(config, draw)
    return files | {"config.json": json.dumps(config).encode("utf-8", "replace")}


def in_config_bytes(files: dict[str, bytes], draw: random.Random) -> dict[str, bytes]:
    """Change bytes of the config."""
    return files | {"config.json": mutate_bytes(files["config.json"], draw)}


def in_weights_bytes(files: dict[str, bytes], draw: random.Random) -> dict[str, bytes]:
    """Change bytes of the weights: in the header, or anywhere."""
    data = files["model.safetensors"]
    head = 8 + int.from_bytes(data[:8], "little")
    if draw.random() < 0.3:
        return files | {"model.safetensors": data[: draw.randrange(len(data))]}
    harmed = mutate_bytes(data[:head], draw) + data[head:] if draw.random() < 0.7 else mutate_bytes(data, draw)
    return files | {"model.safetensors": harmed}


def in_names(files: dict[str, bytes], draw: random.Random) -> dict[str, bytes]:
    """Swap, rename, drop or reshape tensors of a file that is otherwise well-formed."""
    header, data = split(files["model.safetensors"])
    names = [name for name in header if name != "__metadata__"]
    one, two = draw.sample(names, 2)
    act = draw.randrange(4)
    if act == 0:
        header[one], header[two] = header[two], header[one]
    elif act == 1:
        header[draw.choice([one + "x", one[:-1], "evil", two.replace("0", "9")])] = header.pop(one)
    elif act == 2:
        shape = header[one]["shape"]
        header[one]["shape"] = draw.choice([shape[::-1], [*shape, 1], [1, *shape], [0], [-1], [1 << 62, 4], shape * 2])
    else:
        header[one]["dtype"] = draw.choice(["F16", "BF16", "F64", "I64", "U8", "BOOL", "F8_E4M3", "C64", "F4", ""])
    return files | {"model.safetensors": join(header, data)}


def in_index(files: dict[str, bytes], draw: random.Random) -> dict[str, bytes]:
    """Put an index beside the weights, with something changed in it."""
    header, _ = split(files["model.safetensors"])
    index = {"metadata": {}, "weight_map": {name: "model.safetensors" for name in header if name != "__metadata__"}}
    changed = json.dumps(mutate_tree(index, draw)).encode("utf-8", "replace")
    return files | {"model.safetensors.index.json": changed}


HARMS: list[Harm] = [in_config, in_config, in_config_bytes, in_weights_bytes, in_names, in_index]


def run_folders(tmp_path: Path, each: int) -> tuple[Tally, float]:
    """Harm a folder of every kind so many times."""
    tally, most = Tally(), 0.0
    for preset in PRESETS:
        good = {path.name: path.read_bytes() for path in folder(tmp_path / preset, preset).iterdir()}
        draw, place = random.Random(preset), tmp_path / f"{preset}-mutant"
        place.mkdir()
        for i in range(each):
            harm = HARMS[i % len(HARMS)]
            mutant = harm(good, draw)
            for old in place.iterdir():
                old.unlink()
            for name, data in mutant.items():
                (place / name).write_bytes(data)
            before = peak(since_now=True)
            tally.take((preset, i, harm.__name__), lambda place=place: load_model(place))
            grown = peak() - before
            most = max(most, grown)
            assert grown < MOST, (preset, i, harm.__name__, grown)
    return tally, most


def run_ggufs(tmp_path: Path, count: int) -> Tally:
    """Harm a GGUF file so many times: mostly its header, where every byte means something."""
    good, tally, draw, path = gguf(llama_keys(), llama_tensors()), Tally(), random.Random(2), tmp_path / "a.gguf"
    head = good.find(b"blk.1.ffn_down.weight") + 60
    for i in range(count):
        harmed = bytearray(good)
        if i % 4 == 0:
            harmed = bytearray(good[: draw.randrange(len(good))])
        elif i % 4 == 1:
            harmed = bytearray(mutate_bytes(good[:head], draw) + good[head:])
        else:
            for _ in range(draw.choice([1, 1, 3])):
                at = draw.randrange(head if draw.random() < 0.9 else len(good))
                harmed[at] = draw.choice([0, 1, 255, 128, harmed[at] ^ 1 << draw.randrange(8)])
        path.write_bytes(bytes(harmed))
        before = peak(since_now=True)
        tally.take(("gguf", i), lambda: find_source(path).model())
        assert peak() - before < MOST, i
    return tally


def test_r14_mutated_folders_load_or_are_refused(tmp_path: Path) -> None:
    tally, most = run_folders(tmp_path, 42)
    print(f"R14: {42 * len(PRESETS)} folders: {tally}, at most {most:.0f} MB")
    assert tally.refused > 2 * tally.accepted > 0


def test_r14_mutated_gguf_files_load_or_are_refused(tmp_path: Path) -> None:
    tally = run_ggufs(tmp_path, 300)
    print(f"R14: 300 GGUF files: {tally}")
    assert tally.refused > tally.accepted > 0


@pytest.mark.full
def test_r14_foreign_full(tmp_path: Path) -> None:
    tally, most = run_folders(tmp_path, 600)
    print(f"R14: {600 * len(PRESETS)} folders: {tally}, at most {most:.0f} MB")
    print(f"R14: 5000 GGUF files: {run_ggufs(tmp_path, 5000)}")
