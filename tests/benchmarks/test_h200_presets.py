"""The table of presets in training holds every preset function that can be trained, and measures each form."""

import subprocess
import sys
from pathlib import Path

import pytest

from heddle.models.presets import PRESETS

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FORMS = ["first", "lstm_lm", "bart-base", "bert-base-masked", "vit-base-16"]


def test_every_preset_function_is_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    from h200_presets import NARANG, families

    assert {PRESETS[name].make for name in families()} == {named.make for named in PRESETS.values()}
    assert {f"narang/{name}" for name in NARANG} <= set(families())


@pytest.mark.full
def test_each_form_is_measured() -> None:
    command = [sys.executable, str(BENCHMARKS / "h200_presets.py"), "--tiny", "--workers", "1", "--only", *FORMS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert sorted(line.split()[0] for line in lines) == sorted(FORMS)
    assert all("tokens_per_second" in line and "'recompiles': 0" in line for line in lines), done.stdout
