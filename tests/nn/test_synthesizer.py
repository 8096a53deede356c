"""Synthesizers: every pattern and blend against its formula, its counts at Narang's size, documents and the cache."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from heddle.core import ConfigError, UsageError, kinds
from heddle.models.networks import LanguageModelConfig
from heddle.nn.attention import (
    AloneConfig,
    AlphaConfig,
    BlendConfig,
    ConstantPatternConfig,
    DensePatternConfig,
    FactorizedPatternConfig,
    PatternConfig,
    PlusConfig,
    RandomPatternConfig,
    SynthesizerConfig,
)
from heddle.nn.attention.synthesizer import Alpha, Blend, Synthesizer
from heddle.nn.attention.synthesizer_patterns import (
    ConstantPattern,
    DensePattern,
    FactorizedPattern,
    Pattern,
    RandomPattern,
)
from heddle.nn.base import Context, Place
from heddle.nn.layers import base_mask
from heddle.nn.positions import RotaryPositionConfig
from heddle.nn.stack import BlockConfig, BranchConfig
from heddle.nn.state import State

WIDTH, HEADS, HEAD, CONTEXT, LENGTH = 8, 2, 5, 9, 6
PATTERNS = [kind() for kind in kinds(PatternConfig).values()]
BLENDS = [kind() for kind in kinds(BlendConfig).values()]


def made(pattern: PatternConfig, blend: BlendConfig, sight: str = "past") -> Synthesizer:
    torch.manual_seed(0)
    config = SynthesizerConfig(heads=HEADS, head_width=HEAD, pattern=pattern, blend=blend)
    module = config.build(WIDTH, Place(sight=sight, context=CONTEXT)).double()  # type: ignore[arg-type]
    for weight in module.parameters():
        torch.nn.init.normal_(weight, std=0.7)
    return module


def x() -> Tensor:
    return torch.randn(3, LENGTH, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def made_score(pattern: Pattern, query: Tensor | None, head: int, i: int, j: int) -> Tensor:
    """Return one score of one head, as the paper writes it; query is that head's, scaled."""
    match pattern:
        case RandomPattern():
            return pattern.table[head, i, j]
        case FactorizedPattern():
            return pattern.left[head, i] @ pattern.right[head, j]
        case ConstantPattern():
            return pattern.left[head, j] @ pattern.right[head, j]
        case DensePattern():
            assert query is not None
            return query.relu() @ pattern.weight[j]
    raise AssertionError(pattern)


def blended(blend: Blend | None, dot_scores: Tensor, score: Tensor) -> Tensor:
    if not isinstance(blend, Alpha):
        return dot_scores + score
    share = 1 / (1 + (-blend.alpha[0]).exp())
    return (1 - share) * dot_scores + share * score


def written_out(module: Synthesizer, row: Tensor, causal: bool) -> Tensor:
    """Mix one row, head and pair after the other."""
    linears = {"query": module.query, "key": module.key, "value": module.value}
    maps = {n: None if m is None else (row @ m.weight.T).view(LENGTH, HEADS, HEAD) for n, m in linears.items()}
    mixed = torch.zeros(LENGTH, HEADS, HEAD, dtype=torch.float64)
    for head in range(HEADS):
        for i in range(LENGTH):
            query = None if maps["query"] is None else maps["query"][i, head] / math.sqrt(HEAD)
            scores = []
            for j in range(i + 1 if causal else LENGTH):
                score = made_score(module.pattern, query, head, i, j)
                if maps["key"] is not None and query is not None:
                    score = blended(module.blend, query @ maps["key"][j, head], score)
                scores.append(score)
            weights = torch.stack(scores).softmax(0)
            mixed[i, head] = weights @ maps["value"][: len(scores), head]
    return mixed.flatten(1) @ module.output.weight.T


@pytest.mark.parametrize("blend", BLENDS, ids=lambda b: b.kind)
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: p.kind)
@pytest.mark.parametrize("sight", ["past", "all"])
@torch.no_grad()
def test_synthesizer_is_its_formula(pattern: PatternConfig, blend: BlendConfig, sight: str) -> None:
    module = made(pattern, blend, sight)
    want = torch.stack([written_out(module, row, sight == "past") for row in x()[:2]])
    torch.testing.assert_close(module(x()[:2], Context()), want, rtol=0, atol=1e-12)
    weights = module.attention_weights(x()[:2], Context())
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))


@torch.no_grad()
def test_the_constant_pattern_looks_the_same_way_from_everywhere() -> None:
    module = made(ConstantPatternConfig(), AloneConfig(), "all")
    y = module(x(), Context())
    torch.testing.assert_close(y, y[:, :1].expand_as(y))
    assert not torch.allclose(*made(FactorizedPatternConfig(), AloneConfig(), "all")(x(), Context())[0, :2])


@pytest.mark.parametrize("blend", BLENDS, ids=lambda b: b.kind)
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: p.kind)
@torch.no_grad()
def test_tables_are_read_by_the_position_within_the_document(pattern: PatternConfig, blend: BlendConfig) -> None:
    module = made(pattern, blend)
    documents = torch.tensor([[0, 0, 1, 1, 1, 2]]).repeat(3, 1)
    positions = torch.tensor([[0, 1, 0, 1, 2, 0]]).repeat(3, 1)
    allowed = base_mask(Context(documents=documents), LENGTH, "past", documents.device)
    packed = module(x(), Context(documents=documents, positions=positions, allowed=allowed))
    for cut in (slice(0, 2), slice(2, 5), slice(5, 6)):
        torch.testing.assert_close(packed[:, cut], module(x()[:, cut], Context()))


@torch.no_grad()
def test_a_bias_by_position_is_added_to_the_scores() -> None:
    module, bias = made(RandomPatternConfig(), AloneConfig(), "all"), torch.zeros(1, HEADS, LENGTH, LENGTH)
    bias[..., 2] = 60.0
    weights = module.attention_weights(x(), Context(bias={HEADS: bias.double()}))
    torch.testing.assert_close(weights[..., 2], torch.ones_like(weights[..., 2]))


@torch.no_grad()
def test_the_cache_holds_values_alone_without_keys() -> None:
    for blend, held in ((AloneConfig(), 1), (PlusConfig(), 2)):
        module = made(DensePatternConfig(), blend)
        ctx = Context(state=State.empty(3, LENGTH), allowed=base_mask(Context(), LENGTH, "past", torch.device("cpu")))
        _, slot = module.step(x(), ctx, None)
        assert len(slot.stores) == held
        assert module.state_elements() == held * HEADS * HEAD


def test_rows_past_the_tables_are_refused_in_one_line() -> None:
    module = made(RandomPatternConfig(), AloneConfig())
    long = torch.zeros(1, CONTEXT + 1, WIDTH, dtype=torch.float64)
    with pytest.raises(UsageError, match="length 10 exceeds the model's context of 9"):
        module(long, Context())
    with pytest.raises(UsageError, match="length 10 exceeds"):
        module.step(long, Context(state=State.empty(1, CONTEXT + 1)), None)
    with pytest.raises(UsageError, match="documents or a state"):
        module.step(long, Context(state=State.empty(1, 3), documents=torch.zeros(1, 10, dtype=torch.long)), None)


def test_rotary_positions_are_refused() -> None:
    block = BlockConfig(branches=(BranchConfig(part=SynthesizerConfig(heads=2)),))
    model = LanguageModelConfig(vocab=9, width=8, context=9, plan=block, position=RotaryPositionConfig())
    with pytest.raises(ConfigError, match="position"):
        model.build()


def count(pattern: PatternConfig, blend: BlendConfig) -> int:
    with torch.device("meta"):
        config = SynthesizerConfig(heads=8, head_width=128, pattern=pattern, blend=blend)
        return sum(p.numel() for p in config.build(768, Place(context=512)).parameters())


def test_counts_are_those_of_narang() -> None:
    w, random, dense = 768 * 1024, 8 * 512 * 512, 128 * 512
    assert count(DensePatternConfig(), AloneConfig()) == 3 * w + dense
    assert count(DensePatternConfig(), PlusConfig()) == 4 * w + dense
    assert count(DensePatternConfig(), AlphaConfig()) == 4 * w + dense + 1
    assert count(FactorizedPatternConfig(), AloneConfig()) == 2 * w + 2 * 16 * 8 * 512
    assert count(ConstantPatternConfig(), AloneConfig()) == 2 * w + 2 * 16 * 8 * 512
    assert count(RandomPatternConfig(), AloneConfig()) == 2 * w + random
    assert count(RandomPatternConfig(), PlusConfig()) == 4 * w + random
    assert count(RandomPatternConfig(), AlphaConfig()) == 4 * w + random + 1


def test_costs_leave_out_what_is_not_done() -> None:
    alone, plus = made(RandomPatternConfig(), AloneConfig()), made(RandomPatternConfig(), PlusConfig())
    assert alone.mixing_flops(7) == 2 * 7 * HEADS * HEAD
    assert plus.mixing_flops(7) == 4 * 7 * HEADS * HEAD
    dense = made(DensePatternConfig(), AloneConfig()).pattern
    assert dense.mixing_flops(CONTEXT) + 2 * dense.weight.numel() == 2 * HEADS * HEAD * CONTEXT


def test_half_precision_streams_stay_so() -> None:
    for pattern in PATTERNS:
        for blend in BLENDS:
            module = made(pattern, blend).float()
            y = module(x().bfloat16(), Context())
            assert y.dtype is torch.bfloat16
            torch.testing.assert_close(y.float(), module(x().float(), Context()), rtol=0.1, atol=0.2)


@pytest.mark.parametrize(("dials", "field"), [({"heads": 0}, "heads"), ({"heads": 2, "dropout": 1.0}, "dropout")])
def test_what_cannot_be_is_refused(dials: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SynthesizerConfig(**dials)
    assert caught.value.field == field
