"""Positions: worked values, distance alone under rotation, growth past the context, and refusals."""

import pytest
import torch
from torch import Tensor

from heddle.core import ConfigError, UsageError
from heddle.nn import (
    Context,
    LearnedPositionConfig,
    Place,
    Position,
    PositionConfig,
    RotaryPositionConfig,
    SinusoidalPositionConfig,
)
from heddle.nn.positions import rotate

PLACE = Place(context=16, head_width=8)


def build(config: PositionConfig, width: int = 8) -> Position:
    position = config.build(width, PLACE)
    torch.manual_seed(0)
    for weight in position.parameters():
        torch.nn.init.normal_(weight)
    return position.double()


def turned(position: Position, x: Tensor, positions: Tensor | None = None) -> Tensor:
    """Return [length, head_width] turned as a query would be."""
    stream = torch.zeros(1, len(x), 8, dtype=x.dtype)
    _, ctx = position(stream, Context(positions=positions))
    assert ctx.rotation is not None
    return rotate(x[None, None], ctx.rotation)[0, 0]


def test_sinusoidal_values_of_the_worked_example() -> None:
    position = SinusoidalPositionConfig().build(4, PLACE)
    out, _ = position(torch.zeros(1, 2, 4), Context())
    wanted = torch.tensor([[0.0, 1.0, 0.0, 1.0], [0.8415, 0.5403, 0.01, 1.0]])
    torch.testing.assert_close(out[0], wanted, atol=1e-4, rtol=0)


def test_rotary_scores_depend_only_on_distance() -> None:
    position = build(RotaryPositionConfig())
    position.reset_tables()
    query, key = (torch.randn(8, dtype=torch.float64).expand(16, 8) for _ in range(2))
    scores = turned(position, query) @ turned(position, key).T
    for distance in range(-15, 16):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-12, atol=1e-12)
    assert scores[5, 0] != pytest.approx(scores[0, 0].item())


def test_rotary_keeps_lengths() -> None:
    position = build(RotaryPositionConfig())
    position.reset_tables()
    x = torch.randn(16, 8, dtype=torch.float64)
    torch.testing.assert_close(turned(position, x).norm(dim=-1), x.norm(dim=-1))


def test_rotary_equals_hugging_face() -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    theirs = LlamaRotaryEmbedding(LlamaConfig(hidden_size=16, num_attention_heads=2, max_position_embeddings=16))
    query, key = torch.randn(1, 2, 16, 8), torch.randn(1, 2, 16, 8)
    cos, sin = theirs(query, torch.arange(16)[None])
    want_query, want_key = apply_rotary_pos_emb(query, key, cos, sin)
    _, ctx = RotaryPositionConfig().build(16, PLACE)(torch.zeros(1, 16, 16), Context())
    assert ctx.rotation is not None
    torch.testing.assert_close(rotate(query, ctx.rotation), want_query)
    torch.testing.assert_close(rotate(key, ctx.rotation), want_key)


@pytest.mark.parametrize(
    "config", [LearnedPositionConfig(), SinusoidalPositionConfig(), RotaryPositionConfig()], ids=lambda c: c.kind
)
def test_given_positions_are_looked_up(config: PositionConfig) -> None:
    position = build(config)
    stream = torch.zeros(1, 16, 8, dtype=torch.float64)
    given = torch.tensor([[3, 0, 7]])

    def mark(x: Tensor, ctx: Context) -> Tensor:
        return x if ctx.rotation is None else ctx.rotation.cos

    whole = mark(*position(stream, Context()))
    assert torch.equal(mark(*position(stream[:, :3], Context(positions=given))), whole[:, [3, 0, 7]])


@pytest.mark.parametrize("config", [SinusoidalPositionConfig(), RotaryPositionConfig()], ids=lambda c: c.kind)
def test_tables_grow_and_keep_their_start(config: PositionConfig) -> None:
    position = config.build(8, PLACE)
    before = {name: table.clone() for name, table in position.named_buffers()}
    position.reach(40)
    for name, table in position.named_buffers():
        assert len(table) == 64
        assert torch.equal(table[:16], before[name])
    position.reach(50)
    assert all(len(table) == 64 for table in position.buffers())


def test_tables_are_no_weights() -> None:
    assert not list(RotaryPositionConfig().build(8, PLACE).state_dict())


def test_learned_positions_refuse_what_lies_past_them() -> None:
    position = LearnedPositionConfig().build(8, PLACE)
    position.reach(16)
    with pytest.raises(UsageError, match=r"length 17 .* context of 16"):
        position.reach(17)


@pytest.mark.parametrize(
    ("config", "width", "place", "field"),
    [
        (SinusoidalPositionConfig(), 7, PLACE, "width"),
        (RotaryPositionConfig(), 8, Place(head_width=None), "position"),
        (RotaryPositionConfig(), 9, Place(head_width=3), "head_width"),
    ],
)
def test_a_position_that_cannot_be_is_refused(config: PositionConfig, width: int, place: Place, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.build(width, place)
    assert caught.value.field == field
