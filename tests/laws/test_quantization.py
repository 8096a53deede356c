"""The law of quantization: with weights in 8 or 4 bits every language model decodes from a state as it reads rows."""

import pytest
import torch
from laws.cases import CONTEXT, Case, cases, ids, loud

from heddle.models.networks import LanguageModel
from heddle.models.surgery import merge_adapters
from heddle.nn.quantization import quantize, quantize_model

NEAR = 0.05  # of the largest score: products are in bfloat16, and parts that choose may choose otherwise


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_a_quantized_model_decodes_as_it_reads_rows(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantize, "MIN_TABLE_ROWS", 8)  # the tables of these models are small
    model = loud(case.config)
    if not isinstance(model, LanguageModel) or model.sight != "past":
        pytest.skip("does not decode step by step")
    model = merge_adapters(model)
    quantize_model(model, "int4")
    tokens = ids(2, 10)
    with torch.no_grad():
        whole = model.logits(tokens)
        state, found = model.new_state(2, CONTEXT), []
        for start, stop in ((0, 6), (6, 7), (7, 8), (8, 10)):
            vectors, state = model.step(tokens[:, start:stop], state)
            found.append(model.head.logits(vectors))
    assert whole.isfinite().all()
    off = (torch.cat(found, dim=1) - whole).abs().amax(-1)
    assert off.median() <= NEAR * whole.abs().max()
