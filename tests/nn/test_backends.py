"""Attention backends: the table gives every situation its backend, and `explain_backend` says the same beforehand."""

import pytest
import torch
from torch import Tensor

from heddle.core.system import Hardware
from heddle.models.presets import PresetConfig
from heddle.models.summary import attention_backends, build_meta
from heddle.nn.attention import (
    AdditiveScoreConfig,
    AttentionConfig,
    AttentionInputs,
    DotScoreConfig,
    GeneralScoreConfig,
    LatentAttentionConfig,
    LatentWidthsConfig,
    Phase,
    Situation,
    explain_backend,
)
from heddle.nn.attention.backends import BACKENDS, AttentionCall, choose_backend
from heddle.nn.base import Place, SelfAttentionConfig
from heddle.nn.kernels import dispatch
from heddle.nn.layers import SlidingWindowConfig
from heddle.nn.positions import (
    AlibiPositionConfig,
    NoPositionConfig,
    PositionConfig,
    RelativePositionConfig,
    RotaryPositionConfig,
)

WINDOW = SlidingWindowConfig(size=128)
LATENT = LatentAttentionConfig(heads=4, latent=32, widths=LatentWidthsConfig(key=16, rotary=16, value=16))
CASES: list[tuple[SelfAttentionConfig, PositionConfig, str, Phase, str]] = [
    (AttentionConfig(heads=4), NoPositionConfig(), "cpu", "training", "sdpa"),
    (AttentionConfig(heads=4), NoPositionConfig(), "cuda", "training", "sdpa"),
    (AttentionConfig(heads=4), RotaryPositionConfig(), "cuda", "packed", "flex_attention"),
    (AttentionConfig(heads=4, dropout=0.1), NoPositionConfig(), "cuda", "packed", "sdpa"),
    (AttentionConfig(heads=4), NoPositionConfig(), "cuda", "decoding", "flash_decoding"),
    (AttentionConfig(heads=4), AlibiPositionConfig(), "cuda", "packed", "sdpa"),
    (AttentionConfig(heads=4), AlibiPositionConfig(), "cuda", "decoding", "sdpa"),
    (AttentionConfig(heads=4), RelativePositionConfig(), "cuda", "decoding", "unfused"),
    (AttentionConfig(heads=4, kv_heads=2), NoPositionConfig(), "cpu", "training", "sdpa"),
    (AttentionConfig(heads=4, kv_heads=2), NoPositionConfig(), "cpu", "packed", "sdpa_repeated"),
    (AttentionConfig(heads=4, kv_heads=2), NoPositionConfig(), "cpu", "decoding", "sdpa_folded"),
    (AttentionConfig(heads=4, mask=WINDOW), NoPositionConfig(), "cpu", "training", "sliding_window"),
    (AttentionConfig(heads=4, mask=WINDOW, dropout=0.1), NoPositionConfig(), "cuda", "packed", "sliding_window"),
    (AttentionConfig(heads=4, mask=WINDOW), NoPositionConfig(), "cuda", "training", "flex_attention"),
    (AttentionConfig(heads=4, mask=WINDOW), NoPositionConfig(), "cuda", "decoding", "sdpa"),
    (AttentionConfig(heads=4, mask=SlidingWindowConfig(size=400)), NoPositionConfig(), "cpu", "training", "sdpa"),
    (AttentionConfig(heads=4, score=DotScoreConfig(softcap=9.0)), NoPositionConfig(), "cpu", "training", "unfused"),
    (
        AttentionConfig(heads=4, score=DotScoreConfig(softcap=9.0)),
        NoPositionConfig(),
        "cuda",
        "training",
        "flex_attention",
    ),
    (AttentionConfig(heads=4, score=AdditiveScoreConfig()), NoPositionConfig(), "cuda", "packed", "unfused"),
    (AttentionConfig(heads=4, score=GeneralScoreConfig()), NoPositionConfig(), "cuda", "packed", "flex_attention"),
    (AttentionConfig(heads=4, score=GeneralScoreConfig()), NoPositionConfig(), "cuda", "decoding", "sdpa"),
    (AttentionConfig(heads=4, score=GeneralScoreConfig(), mask=WINDOW), NoPositionConfig(), "cpu", "training", "sdpa"),
    (LATENT, RotaryPositionConfig(), "cuda", "training", "sdpa"),
    (LATENT, RotaryPositionConfig(), "cuda", "decoding", "sdpa_folded"),
]


@pytest.mark.parametrize(("config", "position", "device", "phase", "name"), CASES)
def test_every_situation_has_its_backend(
    config: SelfAttentionConfig,
    position: PositionConfig,
    device: str,
    phase: Phase,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch, "HAS_TRITON", True)
    place = Place(head_width=16, heads=(4,), depth=1)
    with torch.device("meta"):
        part, at = config.build(64, place), position.build(64, place)
    assert explain_backend(part, at, "past", Situation(phase, device, torch.float32, 1024)).name == name


def inputs(queries: int, keys: int, dtype: torch.dtype = torch.float32) -> AttentionInputs:
    def numbers(length: int) -> Tensor:
        return torch.randn(1, 2, length, 8, generator=torch.Generator().manual_seed(0)).to(dtype)

    return AttentionInputs(numbers(queries), numbers(keys), numbers(keys))


@pytest.mark.parametrize(
    ("queries", "keys", "dtype", "compiling", "name"),
    [
        (5, 5, torch.bfloat16, False, "unfused"),
        (5, 600, torch.bfloat16, False, "sdpa"),
        (1, 5, torch.bfloat16, False, "sdpa"),
        (1, 5, torch.float32, True, "unrolled"),
        (2, 5, torch.float32, True, "sdpa"),
    ],
)
def test_short_rows_and_compiled_queries_on_a_cpu(
    queries: int, keys: int, dtype: torch.dtype, compiling: bool, name: str
) -> None:
    call = AttentionCall(DotScoreConfig().build(2, 8), inputs(queries, keys, dtype), 0.0, "cpu", compiling)
    assert choose_backend(call).name == name


def test_backends_that_take_one_query_agree() -> None:
    call = AttentionCall(DotScoreConfig().build(2, 8), inputs(1, 9), 0.0, "cpu", compiling=False)
    every = {
        backend.name: backend.attend(call) for backend in BACKENDS if backend.name in ("unfused", "unrolled", "sdpa")
    }
    for found in every.values():
        torch.testing.assert_close(found, every["sdpa"])


def test_the_table_ends_with_a_backend_for_everything_and_gives_reasons() -> None:
    assert [backend.used_when is None for backend in BACKENDS].index(True) == len(BACKENDS) - 1
    assert all(backend.reason for backend in BACKENDS)


def test_a_summary_tells_the_backends_of_a_model() -> None:
    model = build_meta(PresetConfig(name="transformer_base").expand())
    found = attention_backends(model, Hardware(torch.device("cpu"), torch.float32))
    assert (found["device"], found["dtype"]) == ("cpu", "float32")
    assert [(layer["first"], layer["count"], "decoding" in layer) for layer in found["layers"]] == [
        ("encoder.stack.1.0.mixer", 6, False),
        ("decoder.stack.1.0.mixer", 6, True),
        ("decoder.stack.1.0.cross", 6, True),
    ]
    assert found["layers"][1]["decoding"] == {"backend": "sdpa", "reason": BACKENDS[-1].reason}
