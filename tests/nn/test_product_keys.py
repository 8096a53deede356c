"""Product keys find the best of all pairs, weigh their values, and cost what the papers say."""

import pytest
import torch

from heddle.core import ConfigError
from heddle.nn.base import Context, Place
from heddle.nn.channels import ProductKeysConfig
from heddle.nn.channels.product_keys import ProductKeys
from heddle.nn.layers import LayerNormConfig

SMALL = ProductKeysConfig(keys=7, heads=3, top_k=4, key_width=6)


def build(config: ProductKeysConfig, width: int = 8) -> ProductKeys:
    made = config.build(width, Place())
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in made.parameters():
            weight.copy_(torch.randn(weight.shape, generator=draw))
    return made.double()


def test_product_keys_equal_a_search_through_all_values() -> None:
    made = build(SMALL)
    x = torch.randn(2, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    want = torch.zeros_like(x)
    for head in range(3):
        query = made.norm(made.query(x).unflatten(-1, (3, 2, 3)))[:, :, head]
        halves = [query[:, :, side] @ made.keys[head, side].T for side in range(2)]
        scores = (halves[0][..., :, None] + halves[1][..., None, :]).flatten(-2)  # of all 49 values
        best, which = scores.topk(4)
        want += (best.softmax(-1)[..., None] * made.values[which]).sum(-2)
    torch.testing.assert_close(made(x, Context()), want)


def test_gradients_reach_keys_queries_and_values() -> None:
    made = build(SMALL)
    x = torch.randn(1, 3, 8, dtype=torch.float64, requires_grad=True, generator=torch.Generator().manual_seed(1))
    weights = (x, made.keys, made.values, made.query.weight)
    assert torch.autograd.gradcheck(lambda *_: made(x, Context()), weights)


def test_half_precision_keeps_the_table_single() -> None:
    made = build(SMALL).float()
    assert made(torch.randn(1, 3, 8).bfloat16(), Context()).dtype == torch.bfloat16


def test_the_memory_of_narang_weighs_and_costs_what_their_table_says() -> None:
    with torch.device("meta"):
        made = ProductKeysConfig(norm=LayerNormConfig(eps=1e-6)).build(768, Place())
        assert made(torch.empty(2, 3, 768), Context()).shape == (2, 3, 768)
    assert sum(p.numel() for p in made.parameters()) == 512**2 * 768 + 4 * 512 * 256 + 768 * 1024 + 1024 + 256
    assert 128 * made.narang_lookup_ops(114) == pytest.approx(376.0e12, rel=1e-3)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="key_width: want an even number"):
        ProductKeysConfig(key_width=5)
    with pytest.raises(ConfigError, match="top_k: want at most 4"):
        ProductKeysConfig(keys=4, top_k=5)
