"""What is stored for R8: the losses of a fixed run, and runs of each release to go on with; and how both are made.

At a release, run this file with the tests on the path: `PYTHONPATH=tests python tests/reliability/stored.py`. It makes
`releases/VERSION/`, and the list of losses anew where this build gives another; look at the diff before you commit it.
"""

import contextlib
import json
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from reliability.harness import metrics, tiny, write_config, write_text

import heddle
from heddle.cli.main import main
from heddle.core import VERSION, encode, override, replace
from heddle.data.rows import StreamRows
from heddle.data.sources import corpus_for
from heddle.models.presets import PresetConfig
from heddle.tasks.generation import training_samples
from heddle.training import RunConfig

HERE = Path(__file__).parent / "releases"
LIST = HERE / "losses.json"
SAVED, MORE = 10, 5  # steps of a stored run, and how many it goes on for
SENTENCES = ["the cat sat on the mat.", "a dog sees the red tree."]
KEPT = ("config.json", "tokenizer.json")  # of a run's folder, beside its checkpoint


def build() -> dict[str, Any]:
    """Say what a loss's last bits depend on: torch, the chip with its instructions, and the number of threads."""
    return {
        "torch": torch.__version__,
        "machine": platform.machine(),
        "chip": _chip(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def _chip() -> str:
    """Tell the chip by maker and numbers, for its name may be that of a whole line."""
    told: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in reversed(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()):
            name, _, value = line.partition(":")
            told[name.strip()] = value.strip()
    wanted = ("vendor_id", "cpu family", "model", "stepping")
    return " ".join(told[name] for name in wanted if name in told) or platform.processor()


def losses(run: Path, after: int = 0) -> list[float]:
    """Return the loss of each step after one."""
    return [line["loss"] for line in metrics(run) if "loss" in line and line["step"] > after]


# --- the runs ---------------------------------------------------------------------------------------------------------


def steady(text: Path) -> RunConfig:
    """Return the run of the stored list: a hundred steps of all but dropout, whose draws are other ones elsewhere."""
    muon = {"kind": "muon", "rest": {"kind": "adamw", "learning_rate": 3e-3}}
    tokenizer = {"kind": "bpe", "vocab": 280}
    changes = {"training__steps": 100, "training__optimizer": muon, "model__dropout": 0.0, "tokenizer": tokenizer}
    return tiny(text, name="steady", hardware__dtype="float32", every__save=1000, every__validate=50, **changes)


def drawn(text: Path) -> RunConfig:
    """Return a shorter run with dropout."""
    return tiny(text, name="drawn", training__steps=20)


def kinds(text: Path) -> dict[str, RunConfig]:
    """Return the runs of which each release keeps a checkpoint: rows that are packed, and streams with their state."""
    muon = {"kind": "muon", "rest": {"kind": "adamw", "learning_rate": 3e-3}}
    small = {"training__steps": SAVED, "model__width": 16, "model__dropout": 0.0, "tokenizer": {"kind": "character"}}
    small |= {"hardware__dtype": "float32", "every__save": 1000, "every__validate": 1000}
    packed = tiny(text, name="packed", training__optimizer=muon, **small)
    streams = replace(
        tiny(text, name="streams", **small),
        model=PresetConfig(name="lstm_lm", width=8, layers=1, dropout=0.0),
        rows=StreamRows(length=8, lanes=4),
    )
    return {one.name: override(one, "data", encode(corpus_for(text.name))) for one in (packed, streams)}


def fresh(folder: Path, text: Path) -> None:
    """Train the steady and the drawn run from nothing, as the command line does."""
    os.chdir(folder)
    with mock.patch.object(
        training_samples, "TOKENS", 4
    ):  # what a run writes for its reader takes longer than its steps
        for config in (steady(text), drawn(text)):
            assert main(["train", str(write_config(folder / f"{config.name}.yaml", config))]) == 0


def go_on(root: Path, kind: str) -> dict[str, Any]:
    """Go on with a stored run in a folder; return what came of it: losses, and how it scores sentences before that."""
    scores = [one.surprisal for one in heddle.load(root / "runs" / kind, device="cpu").score(SENTENCES)]
    assert main(["train", f"runs/{kind}", f"training.steps={SAVED + MORE}"]) == 0
    return {"losses": losses(root / "runs" / kind, after=SAVED), "scores": scores}


# --- making them ------------------------------------------------------------------------------------------------------


def make(root: Path) -> None:
    """Make the runs of this release, and the list of losses, by way of an empty folder."""
    torch.set_num_threads(1)  # as the tests have it: else their losses would be those of another build
    target = HERE / VERSION
    assert not target.exists(), f"{target}: a release is stored once"
    text = write_text(root / "text.txt")
    os.chdir(root)
    for kind, config in kinds(text).items():
        assert main(["train", str(write_config(root / f"{kind}.yaml", config))]) == 0
        (checkpoint,) = (root / "runs" / kind / "checkpoints").glob(f"step-{SAVED:08d}")
        shutil.copytree(checkpoint, target / kind / "checkpoints" / checkpoint.name)
        for name in KEPT:
            shutil.copy(root / "runs" / kind / name, target / kind / name)
        write(target / kind / "expected.json", go_on(root, kind))
    shutil.copy(text, target / "text.txt")
    fresh(root, text)
    found = losses(root / "runs" / "steady")
    if not LIST.exists() or json.loads(LIST.read_text())["losses"] != found:
        write(LIST, {"losses": found})


def write(path: Path, found: dict[str, Any]) -> None:
    """Write what was found, with the build that found it."""
    path.write_text(json.dumps({"build": build()} | found, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        fresh(Path(sys.argv[1]), Path(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory() as name:
            make(Path(name))
