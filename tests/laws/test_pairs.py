"""The laws of encoder-decoders: what the source is, and what it is padded with and beside."""

import dataclasses
from typing import Any

import pytest
import torch
from laws.cases import CONTEXT, VOCAB, Case, as_source, ids, loud, pairs
from laws.laws import agree, embedded
from torch import Tensor

from heddle.core import HeddleError
from heddle.models.networks import EncoderDecoder
from heddle.nn.base import Context
from heddle.nn.state import State

PAIRS = pairs()
LENGTHS = torch.tensor([9, 4, 1])


def sourced(case: Case) -> EncoderDecoder:
    model: EncoderDecoder = loud(case.config).model
    return model


def comparable(model: EncoderDecoder, outputs: Tensor) -> Tensor:
    """Return outputs whose width does not depend on the source: logits where the head copies from it."""
    return model.head.logits(outputs) if model.head.copies else outputs


@pytest.mark.parametrize("case", PAIRS, ids=lambda c: c.name)
@torch.no_grad()
def test_a_padded_source_is_the_bare_one(case: Case) -> None:
    model, source, target = sourced(case), ids(3, 9), ids(3, 6, seed=1)
    real = torch.arange(9) < LENGTHS[:, None]
    for filler in (0, VOCAB - 1):
        outputs = model(target, Context(memory=model.encode(as_source(model, source.where(real, filler)), LENGTHS)))
        for row, length in enumerate(LENGTHS.tolist()):
            alone = model(
                target[row : row + 1], Context(memory=model.encode(as_source(model, source[row : row + 1, :length])))
            )
            mine = comparable(model, outputs[row : row + 1])
            agree(mine, comparable(model, alone), f"source {row} of {length} tokens")


@pytest.mark.parametrize("case", PAIRS, ids=lambda c: c.name)
@torch.no_grad()
def test_chosen_rows_go_on_with_their_own_sources(case: Case) -> None:
    model, source, target = sourced(case), ids(3, 9), ids(3, CONTEXT, seed=1)
    whole = model(target, Context(memory=model.encode(as_source(model, source), LENGTHS)))
    _, state = model.step(target[:, :4], model.initial_state(model.encode(as_source(model, source), LENGTHS), CONTEXT))
    rows = torch.tensor([2, 0, 2, 1])
    chosen: State = state.select(rows)
    for i in range(4, CONTEXT):
        output, chosen = model.step(target[rows, i : i + 1], chosen)
        agree(output[:, 0], whole[rows, i], f"step {i}")


@pytest.mark.parametrize("case", PAIRS, ids=lambda c: c.name)
def test_every_output_sees_the_source(case: Case) -> None:
    model, source, target = sourced(case), ids(2, 5), ids(2, 4, seed=1)
    side: Any = dataclasses.make_dataclass("Side", ["embedding"])(model.encoder.embedding)
    with embedded(side) as caught:
        outputs = model(target, Context(memory=model.encode(as_source(model, source))))
    for i in range(4):
        (gradient,) = torch.autograd.grad(outputs[:, i].sin().sum(), caught[0], retain_graph=True)
        assert gradient.abs().sum() > 0, f"output {i} does not see the source"


@pytest.mark.parametrize("case", PAIRS, ids=lambda c: c.name)
def test_an_encoder_decoder_without_a_source_says_so(case: Case) -> None:
    with pytest.raises(HeddleError, match="source"):
        sourced(case)(ids(1, 3))
    with pytest.raises(HeddleError, match="source"):
        sourced(case).new_state(1, 3)
