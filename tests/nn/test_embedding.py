"""Embeddings against their formulas: scaled, factorized, adaptive, segmented, narrow, and images in squares."""

import pytest
import torch
from torch import nn

from heddle.core import ConfigError
from heddle.nn.base import Context, Module, NormalInitConfig, Place, initialize
from heddle.nn.ends import (
    AdaptiveEmbeddingConfig,
    ClusterConfig,
    Embedding,
    EmbeddingConfig,
    FactorizedEmbeddingConfig,
    FullEmbeddingConfig,
    NarrowEmbeddingConfig,
    SegmentedEmbeddingConfig,
)
from heddle.nn.layers import LayerNormConfig
from heddle.nn.positions import LearnedPositionConfig, RotaryPositionConfig

VOCAB, WIDTH = 20, 8
CLUSTERS = (ClusterConfig(size=4), ClusterConfig(size=6, width=5), ClusterConfig(width=3), ClusterConfig(size=2))
IDS = torch.tensor([[0, 3, 4, 9, 10], [17, 18, 19, 2, 11]])


def built(config: EmbeddingConfig, vocab: int | None = VOCAB, width: int = WIDTH) -> Embedding:
    made = config.build(vocab, width, Place(context=6)).double()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in made.parameters():
            weight.copy_(torch.randn(weight.shape, generator=draw, dtype=torch.float64))
    return made


def test_scale_is_a_number_times_a_power_of_the_width() -> None:
    made = built(FullEmbeddingConfig(scale=3.0, power=0.5))
    torch.testing.assert_close(made(IDS, Context()), made.weight[IDS] * 3 * WIDTH**0.5)


def test_a_rounded_scale_has_the_dtype_of_the_weights() -> None:
    exact, rounded = (built(FullEmbeddingConfig(power=0.5, rounded=r), width=3072).bfloat16() for r in (False, True))
    torch.testing.assert_close(rounded(IDS, Context()), rounded.weight[IDS] * 55.5, rtol=0, atol=0)  # from 55.4256
    assert not torch.equal(exact(IDS, Context()), rounded(IDS, Context()))


def test_factorized_is_the_product_of_two_matrices() -> None:
    made = built(FactorizedEmbeddingConfig(inner=3))
    torch.testing.assert_close(made(IDS, Context()), (made.weight @ made.map.weight.T)[IDS])


def test_adaptive_looks_each_id_up_in_its_own_cluster() -> None:
    made = built(AdaptiveEmbeddingConfig(clusters=CLUSTERS))
    tables = [c.weight if c.map is None else c.weight @ c.map.weight.T for c in made.clusters]
    assert [len(table) for table in tables] == [4, 6, 8, 2]
    assert [c.map is None for c in made.clusters] == [True, False, False, True]
    torch.testing.assert_close(made(IDS, Context()), torch.cat(tables)[IDS])


def test_an_id_past_the_vocabulary_is_refused_by_adaptive_tables_too() -> None:
    with pytest.raises(IndexError):
        built(AdaptiveEmbeddingConfig(clusters=CLUSTERS))(torch.tensor([[VOCAB]]), Context())


@pytest.mark.parametrize(
    "sizes", [(20,), (4, None, None), (10, 11), (10, 9), (20, None)], ids=lambda sizes: str(list(sizes))
)
def test_clusters_must_fill_the_vocabulary(sizes: tuple[int | None, ...]) -> None:
    clusters = tuple(ClusterConfig(size=size) for size in sizes)
    with pytest.raises(ConfigError, match="clusters: want two or more whose sizes add up to the vocabulary of 20"):
        built(AdaptiveEmbeddingConfig(clusters=clusters))


def test_segments_are_added() -> None:
    made, segments = built(SegmentedEmbeddingConfig(segments=3)), torch.tensor([[0, 0, 1, 2, 2], [1, 1, 1, 1, 0]])
    want = made.tokens.weight[IDS] + made.segments.weight[segments]
    torch.testing.assert_close(made(IDS, Context(segments=segments)), want)
    torch.testing.assert_close(made(IDS, Context()), made.tokens.weight[IDS] + made.segments.weight[0])


def test_a_narrow_entrance_widens_last() -> None:
    config = NarrowEmbeddingConfig(inner=4, position=LearnedPositionConfig(), norm=LayerNormConfig())
    made = built(config)
    norm = nn.LayerNorm(4, dtype=torch.float64)
    norm.load_state_dict(made.norm.state_dict())
    want = norm(made.table.weight[IDS] + made.position.weight[:5]) @ made.map.weight.T + made.map.bias
    torch.testing.assert_close(made(IDS, Context()), want)
    moved = Context(positions=torch.tensor([[2, 1, 0, 0, 1]] * 2))
    assert not torch.allclose(made(IDS, moved), want)
    with pytest.raises(ConfigError, match="position: want one that is added to the stream"):
        NarrowEmbeddingConfig(position=RotaryPositionConfig())


@pytest.mark.parametrize("inner", [16, 64])
def test_two_factors_begin_with_the_configured_deviation(inner: int) -> None:
    holder = Module()
    holder.made = FactorizedEmbeddingConfig(inner=inner, deviation=0.5).build(400, 300, Place())
    initialize(holder, NormalInitConfig(), depth=1, seed=0)
    factors = holder.made.weight.std().item(), holder.made.map.weight.std().item()
    assert factors == pytest.approx((0.5**0.5 * inner**-0.25,) * 2, rel=0.05)
    assert (holder.made.weight @ holder.made.map.weight.T).std().item() == pytest.approx(0.5, rel=0.05)
