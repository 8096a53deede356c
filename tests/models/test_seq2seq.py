"""Recurrent sequence to sequence: what each preset is made of, and that each learns to read and write."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from heddle.core import ConfigError, find
from heddle.data.rows import Batch
from heddle.models import count_parameters
from heddle.models.networks import EncoderDecoder, EncoderDecoderConfig
from heddle.models.presets import preset
from heddle.nn.base import Context
from heddle.nn.recurrent import AlignmentConfig, AttentionRNN, EveryStepConfig, FirstStateConfig, LSTMConfig
from heddle.objectives import SequenceConfig

NAMES = ["seq2seq_lstm", "seq2seq_lstm_every_step", "seq2seq_attention"]
VOCAB, WIDTH, LENGTH = 12, 32, 5


def small(name: str, **options: Any) -> EncoderDecoderConfig:
    config = preset(name).config(**{"layers": 1, "width": WIDTH, "vocab": VOCAB, "context": 8} | options)
    assert isinstance(config, EncoderDecoderConfig)
    return config


def pairs(count: int, seed: int = 0) -> Batch:
    """Draw rows to be written backwards, of unequal length; 0 begins, ends and pads."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, LENGTH + 1, (count,), generator=draw)
    steps = torch.arange(LENGTH)
    source = torch.randint(1, VOCAB, (count, LENGTH), generator=draw) * (steps < lengths[:, None])
    back = torch.where(steps < lengths[:, None], source.gather(1, (lengths[:, None] - 1 - steps).clamp(min=0)), 0)
    end = torch.zeros(count, 1, dtype=torch.long)
    weights = (torch.arange(LENGTH + 1) <= lengths[:, None]).float()
    return Batch(
        torch.cat((end, back), 1),
        torch.cat((back, end), 1),
        weights,
        torch.arange(count),
        source=source,
        source_lengths=lengths,
    )


@pytest.mark.parametrize("name", NAMES)
def test_it_learns_to_write_eight_rows_backwards_and_does_so_on_its_own(name: str) -> None:
    model, batch, objective = small(name).build(), pairs(8), SequenceConfig()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        loss = objective(model, batch).total / batch.tokens
        loss.backward()
        optimizer.step()
        if loss.item() < 0.02:
            break
    assert loss.item() < 0.1
    assert torch.equal(written(model.eval(), batch), batch.targets * (batch.weights > 0))


@torch.no_grad()
def written(model: EncoderDecoder, batch: Batch) -> Tensor:
    """Write greedily, token by token, until the end."""
    assert batch.source is not None
    state = model.initial_state(model.encode(batch.source, batch.source_lengths), LENGTH + 1)
    token, ended, out = torch.zeros(len(batch), dtype=torch.long), torch.zeros(len(batch), dtype=torch.bool), []
    for _ in range(LENGTH + 1):
        hidden, state = model.step(token[:, None], state)
        token = model.head.logits(hidden[:, 0]).argmax(-1).masked_fill(ended, 0)
        ended |= token == 0
        out.append(token)
    return torch.stack(out, 1)


@pytest.mark.parametrize("name", NAMES)
def test_a_source_in_a_batch_gives_what_it_gives_alone(name: str) -> None:
    model, batch = small(name, layers=2).build(1).double().eval(), pairs(4)
    assert batch.source is not None and batch.source_lengths is not None
    together = model(batch.inputs, Context(memory=model.encode(batch.source, batch.source_lengths)))
    for row, length in enumerate(batch.source_lengths.tolist()):
        memory = model.encode(batch.source[row : row + 1, :length])
        alone = model(batch.inputs[row : row + 1], Context(memory=memory))
        torch.testing.assert_close(together[row : row + 1], alone, rtol=0, atol=1e-12)


def test_one_table_serves_both_sides_and_the_head() -> None:
    for name in NAMES:
        model = small(name).build()
        assert model.head.weight is model.encoder.embedding.weight is model.decoder.embedding.weight


def test_the_weights_are_those_that_the_formulas_name() -> None:
    table, cell = VOCAB * WIDTH, 4 * WIDTH * (2 * WIDTH + 2)
    begin = 2 * WIDTH * (WIDTH + 1)
    assert count_parameters(small("seq2seq_lstm").build()) == table + 2 * cell + begin
    assert count_parameters(small("seq2seq_lstm_every_step").build()) == table + 2 * cell + begin + WIDTH * (WIDTH + 1)
    half = WIDTH // 2
    reading = 2 * 4 * half * (WIDTH + half + 2)
    looking = 4 * WIDTH * WIDTH + 2 * WIDTH * WIDTH  # context into the gates; context and state into the output
    scores = {"additive": 2 * WIDTH * WIDTH + WIDTH, "dot": 0, "general": WIDTH * WIDTH}
    for score, own in scores.items():
        built = small("seq2seq_attention", score=score).build()
        assert count_parameters(built) == table + reading + cell + looking + own + begin, score


def test_options_reach_their_parts() -> None:
    assert find(small("seq2seq_lstm"), FirstStateConfig)
    assert find(small("seq2seq_lstm_every_step"), EveryStepConfig)
    for score in ("additive", "dot", "general"):
        (alignment,) = find(small("seq2seq_attention", layers=3, score=score), AlignmentConfig)
        assert alignment.kind == score
    deep = small("seq2seq_attention", layers=3)
    assert deep.encoder.plan.depth() == deep.decoder.plan.depth() == 3
    assert len(find(dataclasses.replace(deep, encoder=deep.decoder), LSTMConfig)) >= 2
    with pytest.raises(ConfigError, match="score: want one of additive, dot, general"):
        small("seq2seq_attention", score="bilinear")


def test_what_attention_looks_at_can_be_seen() -> None:
    model, batch = small("seq2seq_attention").build().eval(), pairs(4)
    assert batch.source is not None and batch.source_lengths is not None
    memory = model.encode(batch.source, batch.source_lengths)
    (part,) = (module for module in model.modules() if isinstance(module, AttentionRNN))
    slot = model.initial_state(memory, 8).slots["decoder.stack.0.mixer"]
    x = model.decoder.embedding(batch.inputs, Context())
    weights = part.attention_weights(x, Context(memory=memory), slot)
    assert weights.shape == (4, 1, LENGTH + 1, LENGTH)
    torch.testing.assert_close(weights.sum(-1), torch.ones(4, 1, LENGTH + 1))
    outside = torch.arange(LENGTH) >= batch.source_lengths[:, None, None, None]
    assert not weights.masked_select(outside.expand_as(weights)).any()
