"""Differential: the answers that vLLM gave on an exported folder are ours (issue 21, line 4).

`make bench-serve` asks vLLM itself; vllm_answers.jsonl has what it said, after the hash of the weights.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from scripts import BENCHMARKS, script
from serving.server import Running, serving

from heddle.cli.main import main

STORED = [json.loads(line) for line in (Path(__file__).parent / "vllm_answers.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def differential() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
        yield script("differential")


@pytest.fixture(scope="module")
def folder(differential: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export the model that vLLM read."""
    place = tmp_path_factory.mktemp("exported")
    assert main(["convert", str(differential.exact_model().save(place / "run")), str(place / "hf"), "--to", "hf"]) == 0
    return place / "hf"


@pytest.fixture(scope="module")
def exported(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    for package in ("fastapi", "uvicorn", "prometheus_client"):
        pytest.importorskip(package, reason="the extra `serve` is not installed")
    with serving({"model": folder}, tmp_path_factory.mktemp("log") / "log", key=None) as running:
        yield running


def test_exported_weights_are_those_that_vllm_read(folder: Path, differential: ModuleType) -> None:
    assert differential.weight_hash(folder) == STORED[0]["weights"]


def test_two_hundred_answers_are_vllms(exported: Running, differential: ModuleType) -> None:
    asked = [(one["path"], one["body"]) for one in STORED[1:]]
    assert asked == differential.requests(differential.ASCII)
    ours = differential.ask(differential.PeerServer("heddle", exported.process.pid, exported.port), asked)
    found = differential.summary(ours, [one["answer"] for one in STORED[1:]])
    print(found)
    assert not found["faults"] and found["requests"] == 200 and found["largest_difference"] < 1e-4


def test_answers_that_differ_are_found(differential: ModuleType) -> None:
    theirs: Any = next(one["answer"] for one in STORED[1:] if len(one["answer"]["ids"]) > 3)
    assert differential.difference(theirs, theirs)["fault"] is None
    for changed in (
        {"ids": [theirs["ids"][0] + 1, *theirs["ids"][1:]]},
        {"ids": theirs["ids"][:-1]},
        {"logprobs": [*theirs["logprobs"][:-1], theirs["logprobs"][-1] + 2e-4]},
        {"usage": [theirs["usage"][0] + 1, theirs["usage"][1]]},
        {"end": "other"},
    ):
        assert differential.difference(theirs | changed, theirs)["fault"], changed
