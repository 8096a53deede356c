"""Positions added to the stream: worked values, the binary index, growth past the context, and refusals."""

import pytest
import torch
from torch import Tensor

from heddle.core import ConfigError, UsageError
from heddle.nn.base import Context, Place
from heddle.nn.positions import (
    BinaryIndexPositionConfig,
    IndexPositionConfig,
    LearnedPositionConfig,
    NormalisedIndexPositionConfig,
    Position,
    PositionConfig,
    RotaryPositionConfig,
    SinusoidalPositionConfig,
)

PLACE = Place(context=16, head_width=8)


def build(config: PositionConfig, width: int = 8) -> Position:
    position = config.build(width, PLACE)
    torch.manual_seed(0)
    for weight in position.parameters():
        torch.nn.init.normal_(weight)
    return position.double()


def added(config: PositionConfig, length: int, width: int = 8, context: int = 16) -> Tensor:
    """Return what a position adds to a stream of zeros."""
    position = config.build(width, Place(context=context))
    position.reserve(length)
    out, _ = position(torch.zeros(1, length, width, dtype=torch.float64), Context())
    return out[0]


def test_sinusoidal_values_of_the_worked_example() -> None:
    position = SinusoidalPositionConfig().build(4, PLACE)
    out, _ = position(torch.zeros(1, 2, 4), Context())
    wanted = torch.tensor([[0.0, 1.0, 0.0, 1.0], [0.8415, 0.5403, 0.01, 1.0]])
    torch.testing.assert_close(out[0], wanted, atol=5.1e-5, rtol=0)  # cos(0.01) is 0.99995


def test_sines_before_cosines_equal_marian() -> None:
    from transformers import MarianConfig
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

    theirs = MarianSinusoidalPositionalEmbedding(MarianConfig(max_position_embeddings=16).max_position_embeddings, 8)
    ours = added(SinusoidalPositionConfig(order="halves"), 16)
    torch.testing.assert_close(ours.float(), theirs.create_weight(), atol=1e-6, rtol=0)


def test_plain_index_counts_in_the_first_channel() -> None:
    out = added(IndexPositionConfig(), 20)
    assert out[:, 0].tolist() == list(range(20))
    assert out[:, 1:].count_nonzero() == 0


def test_normalised_index_is_one_at_the_end_of_the_context() -> None:
    out = added(NormalisedIndexPositionConfig(), 31)
    assert out[0, 0] == 0
    assert out[15, 0] == 1
    assert out[30, 0] == 2, "past the context it goes on at the same pace"
    assert out[:, 1:].count_nonzero() == 0


def test_normalised_index_does_not_know_how_long_the_row_is() -> None:
    assert torch.equal(added(NormalisedIndexPositionConfig(), 5), added(NormalisedIndexPositionConfig(), 16)[:5])


def test_binary_index_of_35_is_100011() -> None:
    out = added(BinaryIndexPositionConfig(), 40, context=64)
    digits = out[35].int().tolist()
    assert "".join(map(str, reversed(digits[:6]))) == "100011"  # the lowest digit stands in the first channel
    assert digits[6:] == [0, 0]


def test_binary_index_numbers_every_place_and_moves_none_when_rows_grow() -> None:
    short, long = (added(BinaryIndexPositionConfig(), 16, context=context) for context in (16, 200))
    assert torch.equal(short, long)
    assert [sum(int(d) << i for i, d in enumerate(row)) for row in short.tolist()] == list(range(16))


def test_binary_index_ends_where_its_digits_end() -> None:
    position = BinaryIndexPositionConfig().build(4, PLACE)
    position.reserve(16)
    assert position.max_length == 16
    with pytest.raises(UsageError, match="length 17 exceeds the 16 of 4 binary digits"):
        position.reserve(17)


@pytest.mark.parametrize(
    "config",
    [
        LearnedPositionConfig(),
        SinusoidalPositionConfig(),
        RotaryPositionConfig(),
        IndexPositionConfig(),
        NormalisedIndexPositionConfig(),
        BinaryIndexPositionConfig(),
    ],
    ids=lambda c: c.kind,
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
    position.reserve(40)
    for name, table in position.named_buffers():
        assert len(table) == 64
        assert torch.equal(table[:16], before[name])
    position.reserve(50)
    assert all(len(table) == 64 for table in position.buffers())


def test_learned_positions_refuse_what_lies_past_them() -> None:
    position = LearnedPositionConfig().build(8, PLACE)
    position.reserve(16)
    with pytest.raises(UsageError, match=r"length 17 .* context of 16"):
        position.reserve(17)


@pytest.mark.parametrize(
    ("config", "width", "place", "field"),
    [
        (SinusoidalPositionConfig(), 7, PLACE, "width"),
        (BinaryIndexPositionConfig(), 3, PLACE, "width"),
        (RotaryPositionConfig(), 8, Place(head_width=None), "head_width"),
        (RotaryPositionConfig(), 9, Place(head_width=3), "head_width"),
        (RotaryPositionConfig(share=0.4), 8, PLACE, "head_width"),
    ],
)
def test_a_position_that_cannot_be_is_refused(config: PositionConfig, width: int, place: Place, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.build(width, place)
    assert caught.value.field == field
