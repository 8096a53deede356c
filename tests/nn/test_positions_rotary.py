"""Rotary positions: distance alone, Hugging Face's rotation, and its frequencies under every scaling."""

import math
from typing import Literal

import pytest
import torch
from torch import Tensor
from transformers import GPTNeoXConfig, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from heddle.core import ConfigError
from heddle.nn.attention import AttentionConfig
from heddle.nn.base import Context, Place
from heddle.nn.layers import FullMaskConfig, SlidingWindowConfig
from heddle.nn.positions import (
    DualRotaryPositionConfig,
    LinearScalingConfig,
    Llama3ScalingConfig,
    NoScalingConfig,
    NTKScalingConfig,
    Position,
    RotaryPositionConfig,
    RotaryScalingConfig,
    YarnScalingConfig,
    apply_rotary,
)
from heddle.nn.positions.position import frequencies

PLACE = Place(context=16, head_width=8)


def build(config: RotaryPositionConfig, place: Place = PLACE) -> Position:
    position = config.build(8, place).double()
    position.reset_buffers()
    return position


def turned(position: Position, x: Tensor, positions: Tensor | None = None) -> Tensor:
    """Return [length, head_width] turned as a query would be."""
    stream = torch.zeros(1, len(x), 8, dtype=x.dtype)
    _, ctx = position(stream, Context(positions=positions))
    assert ctx.rotation is not None
    return apply_rotary(x[None, None], ctx.rotation)[0, 0]


@pytest.mark.parametrize("order", ["halves", "interleaved"])
@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize("scaling", [NoScalingConfig(), YarnScalingConfig(factor=4.0, original=16)], ids=str)
def test_rotary_scores_depend_only_on_distance(
    share: float, scaling: RotaryScalingConfig, order: Literal["halves", "interleaved"]
) -> None:
    position = build(RotaryPositionConfig(share=share, scaling=scaling, order=order))
    torch.manual_seed(0)
    query, key = (torch.randn(8, dtype=torch.float64).expand(16, 8) for _ in range(2))
    scores = turned(position, query) @ turned(position, key).T
    for distance in range(-15, 16):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-12, atol=1e-12)
    assert scores[5, 0] != pytest.approx(scores[0, 0].item())


def test_neighbours_turn_as_complex_numbers_do() -> None:
    x = torch.randn(16, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    pairs = torch.view_as_complex(x.unflatten(-1, (4, 2)).contiguous())
    angles = torch.arange(16)[:, None] * frequencies(8, 10_000.0, x.device)
    want = pairs * torch.polar(torch.ones_like(angles), angles)
    got = turned(build(RotaryPositionConfig(order="interleaved")), x)
    torch.testing.assert_close(got, torch.cat((want.real, want.imag), dim=-1))


def test_a_window_turns_by_the_near_base_and_all_else_by_the_far() -> None:
    near, far = RotaryPositionConfig(base=100.0), RotaryPositionConfig(scaling=LinearScalingConfig(factor=3.0))
    position = DualRotaryPositionConfig(near=near, far=far).build(8, PLACE)
    stream = torch.randn(2, 16, 8, generator=torch.Generator().manual_seed(0))
    for mask, alone in ((SlidingWindowConfig(size=5), near), (FullMaskConfig(), far)):
        attention = AttentionConfig(heads=1, mask=mask).build(8, PLACE)
        for weight in attention.parameters():
            torch.nn.init.normal_(weight, generator=torch.Generator().manual_seed(1))
        _, both = position(stream, Context())
        _, one = alone.build(8, PLACE)(stream, Context())
        assert torch.equal(attention(stream, both), attention(stream, one))
        assert not torch.equal(attention(stream, both), attention(stream, Context()))


def test_rotary_keeps_lengths() -> None:
    x = torch.randn(16, 8, dtype=torch.float64)
    torch.testing.assert_close(turned(build(RotaryPositionConfig()), x).norm(dim=-1), x.norm(dim=-1))


def test_rotary_equals_hugging_face() -> None:
    theirs = LlamaRotaryEmbedding(LlamaConfig(hidden_size=16, num_attention_heads=2, max_position_embeddings=16))
    query, key = torch.randn(1, 2, 16, 8), torch.randn(1, 2, 16, 8)
    cos, sin = theirs(query, torch.arange(16)[None])
    want_query, want_key = apply_rotary_pos_emb(query, key, cos, sin)
    _, ctx = RotaryPositionConfig().build(16, PLACE)(torch.zeros(1, 16, 16), Context())
    assert ctx.rotation is not None
    torch.testing.assert_close(apply_rotary(query, ctx.rotation), want_query)
    torch.testing.assert_close(apply_rotary(key, ctx.rotation), want_key)


def test_part_of_a_head_is_turned_as_gpt_neox_turns_it() -> None:
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding
    from transformers.models.gpt_neox.modeling_gpt_neox import apply_rotary_pos_emb as apply_partly

    config = GPTNeoXConfig(hidden_size=32, num_attention_heads=2, rotary_pct=0.25, max_position_embeddings=16)
    query, key = torch.randn(1, 2, 16, 16), torch.randn(1, 2, 16, 16)
    cos, sin = GPTNeoXRotaryEmbedding(config)(query, torch.arange(16)[None])
    want, _ = apply_partly(query, key, cos, sin)
    _, ctx = RotaryPositionConfig(share=0.25).build(32, Place(context=16, head_width=16))(
        torch.zeros(1, 16, 32), Context()
    )
    assert ctx.rotation is not None
    assert ctx.rotation.cos.shape[-1] == 2
    torch.testing.assert_close(apply_rotary(query, ctx.rotation), want)


CASES = [
    (LinearScalingConfig(factor=4.0), {"rope_type": "linear", "factor": 4.0}, None),
    (NTKScalingConfig(factor=3.0), {"rope_type": "dynamic", "factor": 2.0}, 2 * 512),  # 2 * (2 * 512) / 512 - (2 - 1)
    (YarnScalingConfig(factor=8.0, original=512), {"rope_type": "yarn", "factor": 8.0}, None),
    (
        YarnScalingConfig(factor=16.0, original=512, fast=16.0, slow=2.0, attention=1.25, whole=False),
        {"rope_type": "yarn", "factor": 16.0, "beta_fast": 16, "beta_slow": 2, "attention_factor": 1.25}
        | {"truncate": False},
        None,
    ),
    (
        Llama3ScalingConfig(factor=8.0, original=512),
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        None,
    ),
]


@pytest.mark.parametrize(("scaling", "theirs", "length"), CASES, ids=lambda c: str(c)[:40])
@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
def test_scaled_frequencies_equal_hugging_face(
    scaling: RotaryScalingConfig, theirs: dict[str, object], length: int | None, base: float
) -> None:
    parameters = theirs | {"rope_theta": base, "original_max_position_embeddings": 512}
    if scaling.kind in ("linear", "ntk"):
        del parameters["original_max_position_embeddings"]
    config = LlamaConfig(
        hidden_size=256, num_attention_heads=2, max_position_embeddings=512, rope_parameters=parameters
    )
    want, factor = ROPE_INIT_FUNCTIONS[str(theirs["rope_type"])](config, torch.device("cpu"), seq_len=length)
    got = scaling.scale_frequencies(frequencies(128, base, torch.device("cpu")), base)
    torch.testing.assert_close(got.float(), want, rtol=2e-6, atol=0)
    assert scaling.attention_factor() == pytest.approx(factor)


def test_the_attention_factor_is_on_cosines_and_sines() -> None:
    plain = build(RotaryPositionConfig())
    sharp = build(RotaryPositionConfig(scaling=YarnScalingConfig(factor=1.0, original=16, attention=1.5)))
    x = torch.randn(16, 8, dtype=torch.float64)
    torch.testing.assert_close(turned(sharp, x), 1.5 * turned(plain, x))


def test_ntk_leaves_the_fastest_pair_and_slows_the_slowest_by_the_factor() -> None:
    before = frequencies(8, 10_000.0, torch.device("cpu"))
    after = NTKScalingConfig(factor=5.0).scale_frequencies(before, 10_000.0)
    assert after[0] == before[0]
    assert math.isclose(after[-1], before[-1] / 5)


def test_tables_are_no_weights() -> None:
    assert not list(build(RotaryPositionConfig()).state_dict())


@pytest.mark.parametrize(
    ("make", "fields", "field"),
    [
        (LinearScalingConfig, {"factor": 0.5}, "factor"),
        (NTKScalingConfig, {"factor": 0.0}, "factor"),
        (YarnScalingConfig, {"factor": 2.0, "original": 16, "slow": 40.0}, "slow"),
        (Llama3ScalingConfig, {"low": 4.0, "high": 1.0}, "low"),
        (RotaryPositionConfig, {"share": 0.0}, "share"),
        (RotaryPositionConfig, {"share": 1.5}, "share"),
    ],
)
def test_a_scaling_that_cannot_be_is_refused(make: type, fields: dict[str, float], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(**fields)
    assert caught.value.field == field
