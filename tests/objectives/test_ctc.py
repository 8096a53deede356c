"""CTC in training: rows that fill up a batch have no edits, and what parts of a model cost is added once."""

from dataclasses import replace

import pytest
import torch
from laws.objective_cases import ctc_encoder, media, recognizer

from heddle.models.networks import Model
from heddle.objectives import CtcAttentionConfig, CtcConfig

OBJECTIVES = {
    "ctc": (CtcConfig(), lambda: recognizer(ctc_encoder)),
    "ctc_attention": (CtcAttentionConfig(), recognizer),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_rows_that_fill_up_a_batch_have_no_edits(name: str) -> None:
    objective, make = OBJECTIVES[name]
    batch, model = media(), make().eval()
    filled = replace(batch, weights=batch.weights * torch.tensor([1, 1, 0, 0])[:, None])
    with torch.no_grad():
        whole, part = (objective(model, one).predictions for one in (batch, filled))
    assert whole is not None
    assert part is not None
    assert whole[2:].all()
    assert torch.equal(part[:2], whole[:2])
    assert not part[2:].any()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_what_parts_of_a_model_cost_is_added_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    objective, make = OBJECTIVES[name]
    batch, model = media(), make().eval()
    with torch.no_grad():
        alone = objective(model, batch)
        monkeypatch.setattr(Model, "auxiliary_loss", lambda self: torch.tensor(2.0))
        found = objective(model, batch)
    assert float(found.total - alone.total) == pytest.approx(2 * int(batch.weights.count_nonzero()))
    assert found.metrics.keys() == alone.metrics.keys() and "too_few_frames" in found.metrics
