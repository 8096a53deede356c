"""Carried scoring: a text read in order costs what the whole costs, whatever the chunks and the cuts."""

import pytest
import torch
from laws.cases import SMALL, loud

from heddle.core import UsageError
from heddle.decoding.scoring import nll_with_carried_state, scoring
from heddle.models.networks import LanguageModel
from heddle.models.presets import PRESETS

VOCAB, END = 23, 22
FAMILIES = ["rnn_lm", "gru_lm", "lstm_lm", "awd_lstm", "mogrifier_lm", "qrnn_lm", "window_lm", "transformer_xl"]


def model_of(name: str) -> LanguageModel:
    found: LanguageModel = loud(PRESETS[name].make(vocab=VOCAB, context=12, **SMALL[name]))
    return found


def documents() -> list[list[int]]:
    draw = torch.Generator().manual_seed(0)
    texts = [torch.randint(VOCAB - 1, (n,), generator=draw).tolist() for n in (9, 1, 30, 0)]
    return [[*text, END] for text in texts]


@pytest.mark.parametrize("name", FAMILIES)
def test_documents_read_on_cost_what_one_long_row_costs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = model_of(name), documents()
    row = torch.tensor([[END, *(id for document in rows for id in document)]])
    with torch.no_grad():
        want = model.head.nll(model(row[:, :-1]), row[:, 1:])[0].float()
    for chunk in (4096, 7, 1):
        monkeypatch.setattr(scoring, "CARRIED_CHUNK", chunk)
        found = list(nll_with_carried_state(model, rows, END))
        assert [len(losses) for losses in found] == [len(document) for document in rows]
        torch.testing.assert_close(torch.cat(found), want)


def test_documents_are_read_as_they_come() -> None:
    rows = iter(documents())
    losses = nll_with_carried_state(model_of("lstm_lm"), rows, END)
    assert len(next(losses)) == 10
    assert len(list(rows)) == 3


def test_a_model_that_keeps_every_token_is_sent_to_windows() -> None:
    with pytest.raises(UsageError, match="carry: want a recurrent model"):
        next(nll_with_carried_state(model_of("first"), documents(), END))


def test_ids_beyond_the_vocabulary_are_refused() -> None:
    with pytest.raises(UsageError, match="want ids from 0 to 22, got 23"):
        list(nll_with_carried_state(model_of("lstm_lm"), [[1, 23]], END))
