"""The contract: names that users know, and what models, runs and decoding give, are as frozen but for what is declared.

`renames.py` has the declarations. On purpose only: `python tests/contract/goldens.py --freeze` freezes all anew.
"""

import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from contract import cases, compare, goldens, names

COLLECT = {
    "configs": names.configs,
    "recipes": names.recipes,
    "options": names.options,
    "public": names.public,
    "state_dict": names.state_dicts,
}


@cache
def frozen(path: Path) -> Any:
    """Return what was frozen."""
    return json.loads(path.read_text())


def agree(lines: list[str]) -> None:
    """Fail with what differs, a line each."""
    assert not lines, "\n".join([f"{len(lines)} differences from the contract (declared in renames.py?)", *lines[:60]])


@pytest.mark.parametrize("category", COLLECT)
def test_names(category: str) -> None:
    """Whatever users write or read by name is called as it was, or as was declared."""
    kept = frozen(goldens.NAMES)
    agree(compare.names_differ(category, kept, {category: COLLECT[category]()}))


@pytest.mark.parametrize("label", cases.MODELS)
def test_logits(label: str) -> None:
    """A small model gives fixed ids the same scores."""
    agree(compare.numbers_differ("logits", label, frozen(goldens.GOLDENS)["logits"][label], goldens.logits(label)))


@pytest.mark.parametrize("name", cases.RUNS)
def test_runs(name: str, tmp_path: Path) -> None:
    """A short run learns the same, and writes the same by every way of decoding."""
    want = frozen(goldens.GOLDENS)["runs"][name]
    if {"regex", "forbid"} & set(cases.RUNS[name][2]) and importlib.util.find_spec("llguidance") is None:
        pytest.skip("needs llguidance")
    agree(compare.numbers_differ("runs", name, want, goldens.run(name, tmp_path)))


def test_all_is_frozen() -> None:
    """Every case has its golden, and every golden its case."""
    kept = frozen(goldens.GOLDENS)
    assert list(kept["logits"]) == list(cases.MODELS) and list(kept["runs"]) == list(cases.RUNS)
