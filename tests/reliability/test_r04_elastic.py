"""R4: a run saved by some processes and resumed by more or fewer goes through the same rows in the same order, to the
same losses within 1e-5, and with sums in a fixed order to the same bits."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from reliability.harness import Nursery, final, metrics, tiny, write_config, write_text

from heddle.core import replace
from heddle.data.rows import StreamRows
from heddle.models.presets import PresetConfig
from heddle.training import RunConfig

BATCH, NEAR = 8, 1e-5
COMMON = {"training__batch": BATCH, "hardware__dtype": "float32", "every__save": 1000, "every__validate": 1000}


@dataclass(frozen=True)
class Kind:
    """A run to cut, and the ways in which its processes change: how many have it, leg by leg."""

    name: str
    changes: dict[str, Any]
    ways: tuple[tuple[int, ...], ...]
    streams: bool = False
    whole: int = 2  # processes that train it without a cut
    exact: bool = False  # to the same bits

    def config(self, text: Path) -> RunConfig:
        """Return the run; attention on packed rows, or an LSTM that carries its state from row to row."""
        config = tiny(text, **COMMON | {"model__dropout": 0.0} | self.changes)
        if not self.streams:
            return config
        model = PresetConfig(name="lstm_lm", width=16, layers=1, dropout=self.changes.get("model__dropout", 0.0))
        return replace(config, model=model, rows=StreamRows(length=8, lanes=BATCH))


def leg(nest: Nursery, root: Path, words: list[str], world: int) -> list[str]:
    """Train with some processes; return the rows that they had, in their order over all of them."""
    done = nest.run(root, words[0], words[1:], world=world, watch=True)
    assert {one.code for one in done} == {0}, done[0].said
    share = BATCH // world
    steps = range(0, len(done[0].rows), share)
    return [row for at in steps for one in done for row in one.rows[at : at + share]]


def losses(run: Path) -> list[float]:
    """Return the loss of each step."""
    found = {line["step"]: line["loss"] for line in metrics(run) if "loss" in line}
    assert sorted(found) == list(range(1, len(found) + 1))
    return [found[step] for step in sorted(found)]


def figures(run: Path) -> list[dict[str, Any]]:
    """Return all that a run measured: each step's line, loads of experts included, and the last held-out loss."""
    lines = metrics(run)
    held_out = [line for line in lines if "validation_loss" in line]
    return [*(line for line in lines if "loss" in line), held_out[-1]]


def trial(nest: Nursery, root: Path, kind: Kind, length: int) -> float:
    """Go each way, some steps and then `length` for each further leg; return the largest relative change of a loss."""
    text, worst = write_text(root / "text.txt"), 0.0
    path = write_config(root / f"{kind.name}.yaml", kind.config(text))
    most = 10 + length * (max(map(len, kind.ways)) - 1)
    order = leg(nest, root / f"{kind.name}-whole", [str(path), f"training.steps={most}"], kind.whole)
    whole = root / f"{kind.name}-whole" / "runs" / "tiny"
    assert len(order) == most * BATCH
    for way in kind.ways:
        where, rows = root / f"{kind.name}-{'-'.join(map(str, way))}", []
        for number, world in enumerate(way):
            target = str(path) if number == 0 else "runs/tiny"
            rows += leg(nest, where, [target, f"training.steps={10 + length * number}"], world)
        assert rows == order[: len(rows)], f"{where.name}: rows in another order"
        pairs = list(zip(losses(where / "runs" / "tiny"), losses(whole), strict=len(rows) == len(order)))
        worst = max(worst, max(abs(one - other) / other for one, other in pairs))
        if kind.exact and len(rows) == len(order):
            assert final(where / "runs" / "tiny") == final(whole), f"{where.name}: other bits"
            assert figures(where / "runs" / "tiny") == figures(whole), f"{where.name}: other metrics"
    return worst


def fixed(name: str, micro: int, ways: tuple[tuple[int, ...], ...], **changes: Any) -> Kind:
    """Return a kind of run whose sums are in a fixed order."""
    settled = {"training__micro_batch": micro, "training__reduction": "deterministic"}
    return Kind(name, settled | changes, ways, exact=True)


def test_r04_a_run_goes_on_with_other_processes(nest: Nursery, tmp_path: Path) -> None:
    plain = trial(nest, tmp_path, Kind("plain", {"training__micro_batch": 2, "model__dropout": 0.1}, ((2, 1, 2),)), 10)
    exact = trial(nest, tmp_path, fixed("fixed", 2, ((1, 2),), model__dropout=0.1), 10)
    print(f"R4: 2 -> 1 -> 2 processes: rows in one order, losses within {plain:.1e}, with fixed sums {exact:.1e}")
    assert plain <= NEAR and exact == 0


MUON: dict[str, Any] = {"training__optimizer": {"kind": "muon"}}
MOMENTUM: dict[str, Any] = {"training__optimizer": {"kind": "sgd", "learning_rate": 0.1, "momentum": 0.9}}
EXPERTS = {
    "kind": "preset",
    "name": "mixtral-8x7b",
    "layers": 1,
    "width": 16,
    "heads": 2,
    "kv_heads": 2,
    "dials": {"experts": 4},
}
BACK = ((2, 1, 2), (2, 4, 2))
KINDS = [
    Kind("adamw", {"training__micro_batch": None}, BACK),
    Kind("dropout", {"training__micro_batch": 2, "model__dropout": 0.1}, ((2, 1), (2, 4))),
    Kind("muon", {"training__micro_batch": 2} | MUON, ((2, 1), (2, 4))),
    Kind("momentum", {"training__micro_batch": None} | MOMENTUM, ((1, 2), (4, 1)), whole=1),
    Kind("carried", {"training__micro_batch": None}, ((2, 1), (2, 4)), streams=True),
    fixed("fixed", 2, BACK, model__dropout=0.1),
    fixed("experts", 2, ((2, 1), (2, 4)), model=EXPERTS),
    Kind(
        "lanes",
        {"training__micro_batch": 2, "training__reduction": "deterministic"},
        ((2, 1), (2, 4)),
        streams=True,
        exact=True,
    ),
    fixed("bfloat16", 1, ((1, 4),), hardware__dtype="bfloat16", **MUON),
]


@pytest.mark.full
def test_r04_full(nest: Nursery, tmp_path: Path) -> None:
    found = {kind.name: trial(nest, tmp_path, kind, 50) for kind in KINDS}
    ways = sum(len(kind.ways) for kind in KINDS)
    told = ", ".join(f"{name} {apart:.1e}" for name, apart in found.items())
    print(f"R4: {ways}/{ways} ways through the same rows in one order; losses within {told}")
    assert max(found.values()) <= NEAR
    assert all(found[kind.name] == 0 for kind in KINDS if kind.exact)
