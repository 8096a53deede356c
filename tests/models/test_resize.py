"""Resizing: a size is an edit of the model: what follows from the width follows, and sizes are found by their count."""

import pytest

from heddle.core import ConfigError, find
from heddle.models import Shape, ShapeLadder, build_meta, count_parameters, resize, shape_of, stack_parameters
from heddle.models.networks import ModelConfig
from heddle.models.presets import PresetConfig
from heddle.nn.attention import AttentionConfig

NAMES = (
    "first",
    "speedrun",
    "gpt2",
    "llama",
    "qwen3-0.6b",
    "lstm_lm",
    "awd_lstm",
    "qrnn_lm",
    "window_lm",
    "t5.1.1-small",
)


def count(model: ModelConfig) -> int:
    """Return the parameters of a model."""
    return count_parameters(build_meta(model))


def sized(name: str) -> PresetConfig:
    """Return a preset over bytes."""
    return PresetConfig(name=name, vocab=257)


@pytest.mark.parametrize("name", NAMES)
def test_its_own_size_gives_the_same_model(name: str) -> None:
    model = sized(name)
    assert count(resize(model, shape_of(model))) == pytest.approx(count(model), rel=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_a_ladder_finds_shapes_near_a_number_of_parameters(name: str) -> None:
    ladder = ShapeLadder(sized(name), count)
    sizes = [ladder.parameters(ladder.nearest(target)) for target in (3e5, 1e6, 4e6)]
    assert sizes == pytest.approx([3e5, 1e6, 4e6], rel=0.35)
    assert sizes == sorted(set(sizes))


def test_layers_grow_with_the_width_unless_there_is_no_residual_connection() -> None:
    first, lstm = ShapeLadder(sized("first"), count), ShapeLadder(sized("lstm_lm"), count)
    assert [first.nearest(n).layers for n in (1e5, 1e6, 1e7)] == [2, 4, 10]
    assert [lstm.nearest(n).layers for n in (1e5, 1e6, 1e7)] == [2, 2, 2]
    assert ShapeLadder(sized("first"), count, depth=0.0).nearest(1e7).layers == 4


def test_heads_keep_about_their_width_and_groups_their_ratio() -> None:
    model = PresetConfig(name="llama", vocab=257, width=512, heads=8, kv_heads=2, hidden=1536, layers=2)
    (attention,) = find(resize(model, Shape(2, 256)).expand(), AttentionConfig)
    assert (attention.heads, attention.kv_heads) == (4, 1)
    shared = PresetConfig(name="llama", vocab=257, width=256, heads=4, kv_heads=1, hidden=768, layers=2)
    for one in (shared, shared.expand()):  # multi-query attention stays that
        (attention,) = find(resize(one, Shape(2, 512)).expand(), AttentionConfig)
        assert (attention.heads, attention.kv_heads) == (8, 1)
    written_out = resize(model.expand(), Shape(3, 256))
    assert find(written_out, AttentionConfig)[0].heads == 4 and count(written_out) == count(
        resize(model, Shape(3, 256))
    )


def test_parameters_without_embeddings_and_head_are_those_of_the_layers() -> None:
    model = build_meta(PresetConfig(name="gpt2", layers=2, width=64, heads=2, vocab=257, context=32))
    table, positions = 257 * 64, 32 * 64
    assert stack_parameters(model) == count_parameters(model) - table - positions


def test_a_depth_that_cannot_change_is_refused() -> None:
    with pytest.raises(ConfigError, match="depth: want 0 for a model whose layers cannot be changed"):
        ShapeLadder(sized("window_lm"), count, depth=1.0)
    with pytest.raises(ConfigError, match="layers: want 1, which this model cannot change, got 2"):
        resize(sized("window_lm"), Shape(2, 64))
