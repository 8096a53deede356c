"""Config format 3: runs, files and overrides with the keys of format 2 still load, and a hint names the new key."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from reliability.harness import differences
from reliability.stored import HERE, MORE, SAVED, losses

from heddle.checkpoints.store import CONFIG_FORMAT, migrate_config
from heddle.cli.main import main
from heddle.core import decode, encode
from heddle.core.system import parse_overrides
from heddle.recipes import RECIPES
from heddle.training import RunConfig, apply_overrides, resolve_run

OLD: dict[str, Any] = {
    "format": 2,
    "also": [{"data": {}, "weight": 0.5}],
    "thawed": ["norm.*"],
    "training": {
        "micro": 2,
        "horizon": {"kind": "growing", "sizes": [4, 8]},
        "optimizer": {"kind": "muon", "rate": 0.5, "decay": 0.25, "rest": {"kind": "adamw", "rate": 0.1, "decay": 0.2}},
        "schedule": {"kind": "stable_decay", "decay": 0.4},
        "average": {"kind": "moving", "decay": 0.9},
    },
    "hardware": {"recompute": "some", "products": "float8", "sums": "fixed", "device": "cpu"},
}
NEW: dict[str, Any] = {
    "format": 3,
    "mix": [{"data": {}, "weight": 0.5}],
    "unfrozen": ["norm.*"],
    "training": {
        "micro_batch": 2,
        "window_warmup": {"kind": "growing", "sizes": [4, 8]},
        "optimizer": {
            "kind": "muon",
            "learning_rate": 0.5,
            "weight_decay": 0.25,
            "rest": {"kind": "adamw", "learning_rate": 0.1, "weight_decay": 0.2},
        },
        "schedule": {"kind": "stable_decay", "decay": 0.4},
        "average": {"kind": "moving", "decay": 0.9},
        "activation_checkpointing": "selective",
        "reduction": "deterministic",
    },
    "hardware": {"matmul": "float8", "device": "cpu"},
}


def test_format_2_becomes_format_3_and_format_3_stays_as_it_is() -> None:
    assert migrate_config(OLD, "old") == NEW == migrate_config(NEW, "new")
    assert decode(RunConfig, NEW).format == CONFIG_FORMAT == 3
    assert migrate_config({"format": 2, "training": {"horizon": "whole"}}, "old")["training"] == {
        "window_warmup": "none"
    }
    for malformed in ({"training": 3}, {"training": {"optimizer": "adamw"}}, {"hardware": None}, {}):
        assert migrate_config(malformed, "old") == malformed | {"format": 3}


def test_an_old_config_file_loads_and_a_hint_names_each_new_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "old.json"
    path.write_text(json.dumps(OLD))
    with caplog.at_level(logging.WARNING, "heddle"):
        assert resolve_run(path, [], tmp_path, RECIPES).config == decode(RunConfig, NEW)
    assert (
        len(caplog.messages) == 11 and f"{path}: training.micro is now called training.micro_batch" in caplog.messages
    )
    caplog.clear()
    path.write_text(json.dumps(NEW))
    assert resolve_run(path, [], tmp_path, RECIPES).config == decode(RunConfig, NEW) and not caplog.messages


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("training.optimizer.rate=0.5", "training.optimizer.learning_rate=0.5"),
        ("training.optimizer.rest.decay=0.5", "training.optimizer.rest.weight_decay=0.5"),
        ("training.optimizer={kind: adamw, rate: 0.5}", "training.optimizer={kind: adamw, learning_rate: 0.5}"),
        ("training.micro=4", "training.micro_batch=4"),
        ("training={micro: 4}", "training={micro_batch: 4}"),
        ("training.horizon=growing", "training.window_warmup=growing"),
        ("training.horizon={kind: whole}", "training.window_warmup={kind: none}"),
        ("hardware.sums=fixed", "training.reduction=deterministic"),
        ("hardware.recompute=blocks", "training.activation_checkpointing=full"),
        ("hardware={recompute: some}", "training.activation_checkpointing=selective"),
        ("hardware.products=float8", "hardware.matmul=float8"),
        ("also=[{data: {}}]", "mix=[{data: {}}]"),
        ("thawed=[norm.*]", "unfrozen=[norm.*]"),
        ("training.guard.in_a_row=3", "training.guard.max_consecutive=3"),
        ("training.guard={in_a_row: 3}", "training.guard={max_consecutive: 3}"),
        ("objective={kind: masked_token, share: 0.3}", "objective={kind: masked_token, mask_rate: 0.3}"),
    ],
)
def test_an_old_override_means_the_new_one_and_says_so(old: str, new: str, caplog: pytest.LogCaptureFixture) -> None:
    first = RECIPES["first"]()
    wanted = apply_overrides(first, parse_overrides([new]))
    assert wanted != first or "none" in new
    assert not caplog.messages, "nothing is said of the new key"
    assert apply_overrides(first, parse_overrides([old])) == wanted
    assert len(caplog.messages) == 1 and new.split("=")[0] in caplog.messages[0]


@pytest.mark.parametrize("kind", ["packed", "streams"])
def test_a_run_of_format_2_resumes_to_the_same_bits(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stored run of the last release, as it is and with its config migrated beforehand."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(HERE / "0.1.0" / "text.txt", tmp_path / "text.txt")
    for name in ("old", "new"):
        shutil.copytree(HERE / "0.1.0" / kind, tmp_path / "runs" / name)
    old = json.loads(Path("runs/old/config.json").read_text())
    assert old["format"] == 2 and "micro" in old["training"]
    Path("runs/new/config.json").write_text(json.dumps(encode(decode(RunConfig, migrate_config(old, "old")))))
    for name in ("old", "new"):
        assert main(["train", f"runs/{name}", f"training.steps={SAVED + MORE}", "every.sample=1000"]) == 0
    assert not differences(tmp_path / "runs" / "old", tmp_path / "runs" / "new")
    assert json.loads(Path("runs/old/config.json").read_text())["format"] == 3
    assert "is now called" not in capsys.readouterr().err, "a run needs no hint: its config is rewritten"
    found = losses(tmp_path / "runs" / "old", after=SAVED)
    wanted = json.loads((HERE / "0.1.0" / kind / "expected.json").read_text())["losses"]
    assert found == pytest.approx(wanted, rel=1e-4)
