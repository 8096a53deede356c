"""R5: bit flips, cut files, files deleted, swapped or emptied: each is found, named, and an older checkpoint loads."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from heddle.checkpoints.store import Snapshot, Store

FILES = ["config.json", "manifest.json", "model.safetensors", "optimizer.safetensors", "state.json", "tokenizer.json"]
Damaged = dict[str, bytes | None]  # file -> its new bytes, or None for deleted


def save_two(folder: Path, parameters: int) -> Store:
    """Save steps 1 and 2, unlike in every file."""
    store = Store(folder)
    for step in (1, 2):
        torch.manual_seed(step)
        weights = {f"layer{i}": torch.randn(parameters // 4) for i in range(4)}
        moments = {f"layer{i}.m": torch.randn(parameters // 4) for i in range(4)}
        texts = {"config.json": f'{{"width": {step}}}', "tokenizer.json": '{"words": ["a", "b"]}' + " " * step}
        state = {"rows": step * 10, "losses": [1.0 / step] * 20}
        store.save(Snapshot(step, {"model": weights, "optimizer": moments}, state, texts, metric=1.0 / step))
    return store


def flips(original: dict[str, bytes], draw: random.Random, count: int) -> Iterator[Damaged]:
    for i in range(count):
        name = FILES[i % len(FILES)]
        data = bytearray(original[name])
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        yield {name: bytes(data)}


def cuts(original: dict[str, bytes], draw: random.Random, count: int) -> Iterator[Damaged]:
    for i in range(count):
        name = FILES[i % len(FILES)]
        yield {name: original[name][: draw.randrange(len(original[name]))]}


def replacements(original: dict[str, bytes], older: dict[str, bytes]) -> Iterator[Damaged]:
    for name in FILES:
        yield {name: None}
        yield {name: b""}
        yield {name: older[name]}
    yield {
        "model.safetensors": original["optimizer.safetensors"],
        "optimizer.safetensors": original["model.safetensors"],
    }
    yield {"config.json": original["tokenizer.json"], "tokenizer.json": original["config.json"]}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def put(folder: Path, files: Damaged) -> None:
    for name, data in files.items():
        if data is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(data)


def check(store: Store, harm: Damaged) -> bool:
    """Tell whether the damage is found, named by its file in one line, and the older checkpoint opened instead."""
    best = store.best()
    found = store.newest()
    if found is None or best is None or len(store.damaged) != 1:
        return False
    (damage,) = store.damaged
    named = any(f"step-00000002/{name}:" in damage.reason for name in harm)
    return found.step == best.step == 1 and named and "\n" not in damage.reason


def run(folder: Path, parameters: int, flipped: int, cut: int) -> tuple[int, int]:
    store, draw = save_two(folder, parameters), random.Random(5)
    second = folder / "step-00000002"
    original, older = contents(second), contents(folder / "step-00000001")
    assert sorted(original) == FILES
    harms = [*flips(original, draw, flipped), *cuts(original, draw, cut), *replacements(original, older)]
    found = 0
    for harm in harms:
        put(second, harm)
        found += check(store, harm)
        put(second, dict(original))
    newest = store.newest()
    assert newest is not None and newest.step == 2, "undamaged again, the newest loads"
    return found, len(harms)


def test_r05_damage_is_found_named_and_passed_over(tmp_path: Path) -> None:
    found, tried = run(tmp_path, parameters=1_000, flipped=60, cut=30)
    print(f"R5: {found}/{tried} detected")
    assert found == tried == 110


def test_r05_every_bit_of_the_manifest_counts(tmp_path: Path) -> None:
    store = save_two(tmp_path, 8)
    path = tmp_path / "step-00000002" / "manifest.json"
    original = path.read_bytes()
    for at in range(len(original) * 8):
        data = bytearray(original)
        data[at // 8] ^= 1 << at % 8
        path.write_bytes(data)
        assert [entry.step for entry in store.list()] == [1], f"bit {at} flipped unseen"


@pytest.mark.full
def test_r05_full(tmp_path: Path) -> None:
    found, tried = run(tmp_path, parameters=1_000_000, flipped=200, cut=100)
    print(f"R5: {found}/{tried} detected")
    assert found == tried == 320
