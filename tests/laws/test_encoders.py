"""The laws of encoders: for every output, embedding of images and preset, through each of its heads."""

import json
from typing import Any

import pytest
import torch
from laws.cases import CONTEXT, VOCAB, WIDTH, Case, encoder, encoders, idle, ids, loud
from laws.laws import agree
from torch import Tensor

from heddle.core import UsageError, decode, encode
from heddle.models.networks import Encoder, EncoderConfig, ModelConfig
from heddle.nn.base import Context
from heddle.nn.outputs import (
    CtcOutputConfig,
    MaskedTokenOutputConfig,
    MeanConfig,
    MultiLabelOutputConfig,
    NextSentenceOutputConfig,
    OutputConfig,
    RegressionOutputConfig,
    ReplacedTokenOutputConfig,
    SequenceClassOutputConfig,
    SpanOutputConfig,
    TokenClassOutputConfig,
)

CASES = encoders()
TEXTS = [case for case in CASES if case.config.embedding.reads != "images"]
FRAMES = 32  # of a sound
BY_ROW = SpanOutputConfig | MultiLabelOutputConfig | RegressionOutputConfig | CtcOutputConfig
PACKING = [MaskedTokenOutputConfig(), TokenClassOutputConfig(classes=4), ReplacedTokenOutputConfig()]
ROWWISE = [NextSentenceOutputConfig(), SequenceClassOutputConfig(classes=3), SpanOutputConfig()]


def inputs_for(config: EncoderConfig, batch: int, seed: int = 0) -> Tensor:
    """Draw rows of ids as long as the context, frames, or images."""
    if config.embedding.reads == "frames":
        return features_of(config, ids(batch, FRAMES, seed))
    if config.vocab is not None:
        return ids(batch, CONTEXT, seed)
    side = 12 if config.context != CONTEXT else 4
    return torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(seed))


def features_of(config: EncoderConfig, rows: Tensor) -> Tensor:
    """Return features of each token's own, for frames; ids as they are, for tokens."""
    if config.embedding.reads == "ids":
        return rows
    table = torch.randn(VOCAB, *config.embedding.item_shape, generator=torch.Generator().manual_seed(9))
    return table[rows]


def labels_for(output: OutputConfig, batch: int, length: int, seed: int = 1) -> Tensor:
    """Draw labels of the shape that an output wants."""
    draw = torch.Generator().manual_seed(seed)
    if isinstance(output, MaskedTokenOutputConfig):
        return torch.randint(VOCAB, (batch, length), generator=draw)
    if isinstance(output, TokenClassOutputConfig):
        return torch.randint(output.classes, (batch, length), generator=draw)
    if isinstance(output, CtcOutputConfig):
        return torch.randint(VOCAB, (batch, 3), generator=draw)
    if isinstance(output, SpanOutputConfig):
        return torch.randint(length, (batch, 2), generator=draw)
    if isinstance(output, SequenceClassOutputConfig):
        return torch.randint(output.classes, (batch,), generator=draw)
    if isinstance(output, NextSentenceOutputConfig):
        return torch.randint(2, (batch,), generator=draw)
    if isinstance(output, MultiLabelOutputConfig):
        return torch.randint(2, (batch, output.classes), generator=draw)
    if isinstance(output, RegressionOutputConfig):
        return torch.randn(batch, 1, generator=draw)
    if isinstance(output, ReplacedTokenOutputConfig):
        return torch.randint(2, (batch, length), generator=draw)
    return torch.arange(batch) ^ 1  # of vectors: the partner's number


def doubled(inputs: Tensor) -> Tensor:
    """Return features in double precision, and ids as they are."""
    return inputs.double() if inputs.is_floating_point() else inputs


def loss(model: Encoder, inputs: Tensor, seed: int = 1) -> Tensor:
    """Return the sum of what all outputs cost; without any, of some direction of all that it gives."""
    total = torch.zeros((), dtype=next(model.parameters()).dtype)
    for output in model.config.outputs:
        labels = labels_for(output, len(inputs), model.embedding.length(inputs), seed)
        total = total + model.nll(output.name, inputs, labels).mean()
    if model.generator is not None:
        total = total + loss(model.generator, inputs, seed)
    if not model.config.outputs:
        x = model(inputs) if model.pooling is None else model.pooled(inputs)
        direction = torch.randn(WIDTH, generator=torch.Generator().manual_seed(3)).to(x.dtype)
        total = total + (x @ direction).mean()
    return total


def unseen(config: EncoderConfig, name: str) -> bool:
    """Tell whether a weight moves all places of a row alike, which a softmax over places does not see."""
    only_spans = all(isinstance(output, SpanOutputConfig) for output in config.outputs)
    return bool(config.outputs) and only_spans and name in ("norm.bias", "outputs.span.edges.bias")


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_shapes_are_kept(case: Case) -> None:
    model, inputs = case.config.build(), inputs_for(case.config, 3)
    length = model.embedding.length(inputs)
    assert model(inputs).shape == (3, length, WIDTH)
    for output in case.config.outputs:
        labels = labels_for(output, 3, length) % 3
        losses = model.nll(output.name, inputs, labels)
        by_row = isinstance(
            output, SpanOutputConfig | MultiLabelOutputConfig | RegressionOutputConfig | CtcOutputConfig
        )
        assert losses.shape == (labels.shape[:1] if by_row else labels.shape)
        assert model.scores(output.name, inputs).shape[0] == 3
    if case.config.pooling is not None:
        assert model.pooled(inputs).shape == (3, WIDTH)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_every_weight_gets_gradient(case: Case) -> None:
    model = loud(case.config).train()
    inputs = doubled(inputs_for(case.config, 4))
    loss(model, inputs).backward()
    for name, weight in model.named_parameters():
        if not weight.requires_grad:
            assert weight.grad is None, f"{name} is frozen, and has a gradient"
            continue
        assert weight.grad is not None, f"{name} is not part of the loss"
        most = weight.grad.abs().max().item()
        if idle(case.config, name) or unseen(case.config, name):
            assert most < 1e-12, f"{name} was said to be idle, and is not: {most:.3g}"
        else:
            assert most > 1e-10, f"{name} gets no gradient"


@pytest.mark.parametrize("case", [c for c in CASES if c.config.outputs], ids=lambda c: c.name)
def test_eight_rows_are_learned_by_heart(case: Case) -> None:
    model, inputs = case.config.build(), inputs_for(case.config, 8, seed=2)
    if case.config.embedding.reads == "ids":
        inputs[:, 0] = torch.arange(8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(400):
        optimizer.zero_grad()
        found = loss(model, inputs)
        found.backward()
        optimizer.step()
        if found < 0.1 * len(case.config.outputs):
            return
    raise AssertionError(f"still {found.item():.3f} nats")


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_config_survives_json(case: Case) -> None:
    assert decode(ModelConfig, json.loads(json.dumps(encode(case.config)))) == case.config


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_seed_builds_the_same_twice(case: Case) -> None:
    before = torch.get_rng_state()
    first, again, other = (case.config.build(seed=s) for s in (5, 5, 6))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(weight, again.weights()[name]) for name, weight in first.weights().items())
    assert any(not torch.equal(weight, other.weights()[name]) for name, weight in first.weights().items())


# --- padding and packing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", TEXTS, ids=lambda c: c.name)
@torch.no_grad()
def test_padded_rows_are_the_bare_ones(case: Case) -> None:
    model, rows, lengths = loud(case.config), ids(3, 9), torch.tensor([6, 9, 1])
    for filler in (0, VOCAB - 1):
        padded = rows.where(torch.arange(9) < lengths[:, None], filler)
        padded = doubled(features_of(case.config, padded))
        ctx = Context(lengths=lengths)
        whole, pooled = model(padded, ctx), None if model.pooling is None else model.pooled(padded, ctx)
        for row, length in enumerate(lengths.tolist()):
            alone = doubled(features_of(case.config, rows[row : row + 1, :length]))
            length = model.embedding.length(alone)
            agree(whole[row : row + 1, :length], model(alone), f"row {row}")
            if pooled is not None:
                agree(pooled[row : row + 1], model.pooled(alone), f"pooled row {row}")
            for output in case.config.outputs:
                got, want = model.scores(output.name, padded, ctx)[row], model.scores(output.name, alone)[0]
                kept = got[..., :length] if isinstance(output, SpanOutputConfig) else got
                kept = kept[:length] if output.reads == "tokens" and kept is got else kept
                agree(kept, want, f"{output.name} of row {row}")


@pytest.mark.parametrize("pooling", [None, MeanConfig()], ids=["token by token", "mean"])
@torch.no_grad()
def test_padding_has_no_say_in_spans_and_means(pooling: Any) -> None:
    model = loud(encoder(outputs=(SpanOutputConfig(),), pooling=pooling))
    rows, lengths = ids(2, 9), torch.tensor([5, 9])
    probabilities = model.scores("span", rows, Context(lengths=lengths)).softmax(-1)
    assert probabilities[0, :, 5:].count_nonzero() == 0
    if pooling is not None:
        agree(model.pooled(rows, Context(lengths=lengths))[:1], model.pooled(rows[:1, :5]), "mean")


@pytest.mark.parametrize("output", PACKING, ids=lambda o: o.name)
@torch.no_grad()
def test_packed_documents_come_out_as_if_apart(output: OutputConfig) -> None:
    model = loud(encoder(outputs=(output,), pooling=None))
    rows, cut = ids(1, 10), (5, 1, 4)
    documents = torch.tensor([[n for n, count in enumerate(cut) for _ in range(count)]])
    positions = torch.tensor([[p for count in cut for p in range(count)]])
    packed = model.scores(output.name, rows, Context(documents=documents, positions=positions))
    start = 0
    for count in cut:
        here = slice(start, start + count)
        agree(packed[:, here], model.scores(output.name, rows[:, here]), f"document at {start}")
        start += count


@pytest.mark.parametrize("output", ROWWISE, ids=lambda o: o.name)
def test_an_output_for_a_whole_row_refuses_packed_documents(output: OutputConfig) -> None:
    model = encoder(outputs=(output,)).build()
    with pytest.raises(UsageError, match="packed documents"):
        model.scores(output.name, ids(1, 4), Context(documents=torch.tensor([[0, 0, 1, 1]])))
