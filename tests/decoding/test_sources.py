"""An encoder-decoder is given a source for each row; a missing, needless or unreadable one is told in one line."""

import pytest
import torch
from laws.cases import ATTENTION, CHANNEL, CONTEXT, VOCAB, around, pair, tower

from heddle.core import ConfigError, UsageError
from heddle.decoding.generation import GenerationConfig, complete, generate
from heddle.decoding.runtime import FinishReason, make_requests
from heddle.decoding.scoring import nll_given_source
from heddle.models.networks import AutoregressiveModel, EncoderDecoder, TowerConfig
from heddle.models.presets import build
from heddle.nn.positions import SinusoidalPositionConfig

HOW = GenerationConfig(max_tokens=5, begin=0)


def reader() -> EncoderDecoder:
    made = pair().build(0).double().eval()
    assert isinstance(made, EncoderDecoder)
    return made


def test_a_missing_a_needless_and_a_miscounted_source_are_named() -> None:
    with pytest.raises(UsageError, match="source: want one for each row"):
        generate(reader(), [[]], HOW)
    with pytest.raises(UsageError, match="source: want 2, one for each row, got 1"):
        generate(reader(), [[], []], HOW, [[1]])
    writer = around(ATTENTION, CHANNEL).build(0)
    assert isinstance(writer, AutoregressiveModel)
    with pytest.raises(UsageError, match="source: not used by a language model"):
        generate(writer, [[]], HOW, [[1]])
    with pytest.raises(UsageError, match="source: want 2"):
        nll_given_source(reader(), [[1]], [[1], [2]], 0)


def test_a_source_that_cannot_be_read_is_named() -> None:
    with pytest.raises(UsageError, match=f"source: want ids from 0 to {VOCAB - 1}, got {VOCAB}"):
        generate(reader(), [[]], HOW, [[VOCAB]])
    with pytest.raises(UsageError, match=f"source: {CONTEXT + 1} tokens are more than the model's context"):
        generate(reader(), [[]], HOW, [[1] * (CONTEXT + 1)])
    with pytest.raises(UsageError, match="an empty source needs an id"):
        generate(reader(), [[1]], GenerationConfig(), [[]])


def test_an_empty_source_is_the_begin_id_alone() -> None:
    assert generate(reader(), [[]], HOW, [[]]) == generate(reader(), [[]], HOW, [[0]])


def test_a_recurrent_encoder_reads_past_its_context() -> None:
    made = build("seq2seq_lstm", layers=1, width=16, vocab=VOCAB, context=CONTEXT)
    assert isinstance(made, AutoregressiveModel)
    assert len(generate(made, [[]], HOW, [[1] * 3 * CONTEXT])[0]) == 5


def test_the_source_has_its_say() -> None:
    target = [4, 5, 6, 7]
    first, second, again = nll_given_source(reader(), [[1, 2, 3], [9, 8, 7, 6], [1, 2, 3]], [target] * 3, 0)
    assert torch.allclose(first, again) and not torch.allclose(first, second, atol=1e-4)


def test_a_target_may_be_stretched_so_far_and_no_further() -> None:
    config = GenerationConfig(max_tokens=100, begin=0, max_length_ratio=0.5)
    decoder = tower(ATTENTION, CHANNEL)
    made = pair(decoder=TowerConfig(plan=decoder.plan, position=SinusoidalPositionConfig())).build(0)
    assert isinstance(made, AutoregressiveModel)
    found = complete(made, make_requests([[], []], [[1, 2, 3, 4], [1]]), config)
    assert [len(c.ids) for c in found] == [12, 11]
    assert {c.reason for c in found} == {FinishReason.LENGTH}
    with pytest.raises(ConfigError, match="max_length_ratio: want above 0"):
        GenerationConfig(max_length_ratio=0.0)


def test_a_target_ends_with_the_positions() -> None:
    found = complete(reader(), make_requests([[]], [[1]]), GenerationConfig(max_tokens=100, begin=0))
    assert len(found[0].ids) == CONTEXT and found[0].reason is FinishReason.CONTEXT


def test_an_empty_target_costs_nothing() -> None:
    losses = nll_given_source(reader(), [[1], [2, 3]], [[], [4, 5]], 0)
    assert [len(loss) for loss in losses] == [0, 2]
