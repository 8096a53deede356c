"""When a step is compiled."""

import pytest
import torch

from heddle.core import Hardware
from heddle.data import PackedRows, PairRows
from heddle.models import PresetConfig
from heddle.objectives import LinearSamplingConfig, NextTokenConfig, SequenceConfig
from heddle.training import HardwareConfig, RunConfig
from heddle.training.compiling import wants_compile

GPU, CPU = (Hardware(torch.device(kind), torch.bfloat16) for kind in ("cuda", "cpu"))


def wants(config: RunConfig, hardware: Hardware = GPU) -> bool:
    with torch.device("meta"):
        return wants_compile(config, config.model.build(), hardware)


def run(name: str, **fields: object) -> RunConfig:
    return RunConfig(model=PresetConfig(name=name, layers=1, width=48, vocab=50), **fields)  # type: ignore[arg-type]


def test_auto_compiles_where_it_helps() -> None:
    assert wants(run("first"))
    assert not wants(run("first"), CPU)
    assert not wants(run("lstm_lm"))
    assert wants(run("qrnn_lm"))


def test_pairs_are_compiled_when_padded_to_one_length() -> None:
    many, one = (PairRows(length=64, source_length=64, multiple=size) for size in (8, 64))
    assert not wants(run("bart-base", rows=many, objective=SequenceConfig()))
    assert wants(run("bart-base", rows=one, objective=SequenceConfig()))


def test_a_loop_over_tokens_is_not_unrolled_unasked() -> None:
    sampled = NextTokenConfig(sampling=LinearSamplingConfig())
    assert wants(run("first", objective=sampled))
    assert not wants(run("qrnn_lm", objective=sampled))


@pytest.mark.parametrize(("word", "compiled"), [("on", True), ("off", False)])
def test_the_user_has_the_last_word(word: str, compiled: bool) -> None:
    assert wants(run("lstm_lm", rows=PackedRows(), hardware=HardwareConfig(compile=word)), CPU) is compiled  # type: ignore[arg-type]
