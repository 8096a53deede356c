"""The law of compiling: every preset trains as one graph, which no other batch makes anew, to the same gradients."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from laws.cases import own_presets

TESTS = Path(__file__).parents[1]
WITHIN = 1e-5  # in float32; tracing may add up in another order
QUICK = ["sampled:first", "lstm_lm", "streams:lstm_lm", "seq2seq_lstm", "mixtral", "bert-base-masked", "t5", "spans:t5"]


def tried(names: list[str], *options: str) -> list[dict[str, Any]]:
    """Run the trial of each name in a process without the tests' shape checks."""
    command = [sys.executable, "-m", "laws.compiling", *names, *options]
    paths = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    env = os.environ | {"PYTHONPATH": paths}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["name"] for line in found] == names
    return found


def keeps_the_law(found: dict[str, Any], within: float = WITHIN) -> None:
    """One graph; where a state is carried, a second once there is something in it."""
    assert "refused" not in found, found["refused"]
    first, *later = found["graphs"]
    if found["name"].startswith("lengths:"):
        assert later == [first] * 4, found  # the first step may be traced twice, until no length is taken for granted
    else:
        assert (first, later) == (1, [2 if found["name"].startswith("streams:") else 1] * 4), found
    assert found["apart"] < within, found


def test_a_family_of_each_form_is_one_graph() -> None:
    for found in tried(QUICK):
        keeps_the_law(found)


STREAMS = [f"streams:{name}" for name in ("gru_lm", "qrnn_lm", "awd_lstm")]
LENGTHS = [
    f"lengths:{name}" for name in ("transformer", "bart", "marian", "seq2seq_lstm")
]  # t5's table knows its length


@pytest.mark.full
@pytest.mark.parametrize("name", [*own_presets(), *STREAMS, *LENGTHS])
def test_every_preset_is_one_graph(name: str) -> None:
    keeps_the_law(tried([name])[0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "name", ["first", "speedrun", "rnn_lm", "gru_lm", "lstm_lm", "streams:lstm_lm", "seq2seq_lstm"]
)
def test_compiled_for_a_gpu_it_gives_the_gradients_of_plain_code(name: str) -> None:
    keeps_the_law(tried([name], "--cuda")[0], within=2e-3)  # sums over tokens, in another order and TF32 or not
