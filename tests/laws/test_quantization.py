"""The law of quantization: with weights in 8 or 4 bits every language model decodes from a state as it reads rows."""

import pytest
import torch
from laws.cases import CONTEXT, Case, cases, ids, loud

from heddle.models.networks import LanguageModel
from heddle.models.surgery import merge_adapters
from heddle.nn.quantization import quantize, quantize_model

NEAR = 0.05  # of the largest score: products are in bfloat16, and parts that choose may choose otherwise


READ = 6  # tokens read at once; what follows needs the state that they left


def quantized(case: Case, monkeypatch: pytest.MonkeyPatch) -> LanguageModel:
    """Return a case's model with weights in four bits."""
    monkeypatch.setattr(quantize, "MIN_TABLE_ROWS", 8)  # the tables of these models are small
    model = loud(case.config)
    if not isinstance(model, LanguageModel) or model.sight != "past":
        pytest.skip("does not decode step by step")
    model = merge_adapters(model)
    quantize_model(model, "int4")
    return model


@torch.no_grad()
def distances(model: LanguageModel) -> torch.Tensor:
    """Return how far the logits after `READ` tokens, from a carried state, are from those of whole rows."""
    tokens = ids(2, 10)
    whole = model.logits(tokens)
    assert whole.isfinite().all()
    state, found = model.new_state(2, CONTEXT), []
    for start, stop in ((0, READ), (READ, 7), (7, 8), (8, 10)):
        vectors, state = model.step(tokens[:, start:stop], state)
        found.append(model.head.logits(vectors))
    off = (torch.cat(found, dim=1) - whole).abs().amax(-1) / whole.abs().max()
    return off[:, READ:]


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_a_quantized_model_decodes_as_it_reads_rows(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    assert distances(quantized(case, monkeypatch)).median() <= NEAR


def test_a_state_that_is_lost_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = quantized(cases()[0], monkeypatch)
    plain = model.step
    monkeypatch.setattr(model, "step", lambda tokens, state: plain(tokens, model.new_state(2, CONTEXT)))
    assert distances(model).median() > NEAR
