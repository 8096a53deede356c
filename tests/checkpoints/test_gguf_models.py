"""GGUF models: rotary scaling as llama.cpp reads it."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from reliability.foreign import gguf, llama_keys, llama_tensors

from heddle.checkpoints import find_source
from heddle.core import ConfigError, UsageError, find
from heddle.nn.positions import LinearScalingConfig, Llama3ScalingConfig, NoScalingConfig, RotaryPositionConfig


def slowed(pairs: int, base: float, factor: float) -> torch.Tensor:
    """Return the numbers that such a file holds, written from the rule as Llama 3 tells it."""
    made = []
    for pair in range(pairs):
        wave = 2 * math.pi * base ** (pair / pairs)
        if wave < 8192 / 4:
            made.append(1.0)
        elif wave > 8192:
            made.append(factor)
        else:
            smooth = (8192 / wave - 1) / 3
            made.append(1 / ((1 - smooth) / factor + smooth))
    return torch.tensor(made)


LINEAR, FACTOR, OLD = "llama.rope.scaling.type", "llama.rope.scaling.factor", "llama.rope.scale_linear"


@pytest.mark.parametrize(
    ("keys", "factor"),
    [
        ({}, None),
        ({LINEAR: "linear", FACTOR: 4.0}, 4.0),
        ({FACTOR: 4.0}, 4.0),  # without a type: linear, as llama.cpp has it
        ({OLD: 4.0}, 4.0),
        ({OLD: 2.0, FACTOR: 4.0}, 4.0),
        ({LINEAR: "linear", OLD: 4.0}, 4.0),
        ({LINEAR: "linear"}, None),
        ({FACTOR: 0.0}, None),
        ({FACTOR: 1.0}, None),
        ({LINEAR: "none", FACTOR: 4.0}, None),
    ],
)
def test_linear_rotary_scaling_is_read_from_gguf_as_llama_cpp_reads_it(
    keys: dict[str, Any], factor: float | None, tmp_path: Path
) -> None:
    (tmp_path / "a.gguf").write_bytes(gguf(llama_keys() | keys, llama_tensors()))
    (found,) = find(find_source(tmp_path / "a.gguf").config(), RotaryPositionConfig)
    assert found.scaling == (NoScalingConfig() if factor is None else LinearScalingConfig(factor=factor))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({LINEAR: "yarn", FACTOR: 4.0}, "rope.scaling.type: want none or linear, found 'yarn'"),
        ({FACTOR: 4.0, "llama.rope.scaling.attn_factor": 1.2}, "attn_factor: want 1"),
        ({FACTOR: -4.0}, "factor: want"),
    ],
)
def test_other_rotary_scaling_in_gguf_is_refused(keys: dict[str, Any], said: str, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(gguf(llama_keys() | keys, llama_tensors()))
    with pytest.raises((UsageError, ConfigError), match=said):
        find_source(tmp_path / "a.gguf").config()


def test_llama_3s_slowed_turns_are_read_from_gguf(tmp_path: Path) -> None:
    keys = llama_keys() | {"llama.attention.head_count": 1, "llama.attention.head_count_kv": 1}
    tensors = llama_tensors() | {f"blk.{i}.attn_{n}.weight": torch.ones(16, 16) for i in range(2) for n in "kv"}
    keys |= {"llama.rope.freq_base": 500_000.0}
    turns = slowed(8, 500_000.0, 32.0)
    assert len(set(turns.tolist())) > 2, "else the bend between is not tried"
    (tmp_path / "a.gguf").write_bytes(gguf(keys, tensors | {"rope_freqs.weight": turns}))
    (found,) = find(find_source(tmp_path / "a.gguf").config(), RotaryPositionConfig)
    assert isinstance(found.scaling, Llama3ScalingConfig) and found.scaling.factor == 32.0
    (tmp_path / "b.gguf").write_bytes(gguf(keys, tensors | {"rope_freqs.weight": turns * 1.1}))
    with pytest.raises(UsageError, match=r"rope_freqs\.weight: want Llama 3's RoPE scaling"):
        find_source(tmp_path / "b.gguf").model()
