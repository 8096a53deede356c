"""Recurrent presets: published sizes, the whole regularization of the AWD-LSTM, and what one option scales."""

import pytest
import torch

from heddle.core import find
from heddle.models import summarize
from heddle.models.networks import LanguageModelConfig
from heddle.models.presets import build, preset
from heddle.nn.base import Context
from heddle.nn.layers import VariationalDropoutConfig
from heddle.nn.recurrent import ActivationPenaltyConfig, LSTMConfig, StackedCellsConfig


def config(name: str, **options: float) -> LanguageModelConfig:
    found = preset(name).config(**options)
    assert isinstance(found, LanguageModelConfig)
    return found


def test_the_awd_lstm_has_its_published_parameters() -> None:
    assert summarize(config("awd_lstm")).parameters == 24_221_600  # on Penn Treebank


def test_the_awd_lstm_is_regularised_as_published_for_penn_treebank() -> None:
    model = config("awd_lstm")
    (deep,) = find(model, StackedCellsConfig)
    assert [cell.hidden for cell in deep.cells] == [1150, 1150, None]
    assert {cell.weight_drop for cell in find(model, LSTMConfig)} == {0.5}
    assert {cell.init_scale for cell in find(model, LSTMConfig)} == {1.0}
    assert deep.dropout == VariationalDropoutConfig(rate=0.25)
    assert model.embedding.word_dropout == pytest.approx(0.1)
    assert model.embedding.dropout == VariationalDropoutConfig(rate=0.4)
    assert find(model, ActivationPenaltyConfig) == [
        ActivationPenaltyConfig(change=1.0),
        ActivationPenaltyConfig(size=2.0),
    ]


def test_one_option_removes_all_regularization() -> None:
    model = build("awd_lstm", layers=2, width=8, hidden=12, vocab=11, dropout=0.0)
    ids = torch.randint(11, (2, 5))
    assert torch.equal(model(ids), model(ids))
    assert model.auxiliary_loss() is None


def test_in_training_the_awd_lstm_costs_more_than_its_errors() -> None:
    torch.manual_seed(0)
    model = build("awd_lstm", layers=2, width=8, hidden=12, vocab=11)
    ids = torch.randint(11, (2, 5))
    assert not torch.equal(model(ids), model(ids))
    penalty = model.auxiliary_loss()
    assert penalty is not None and penalty > 0
    model.eval()
    assert torch.equal(model(ids), model(ids))
    assert model.auxiliary_loss() is None


def test_first_weights_of_the_awd_lstm_lie_within_their_published_bounds() -> None:
    model = build("awd_lstm", width=40, hidden=100, vocab=50)
    for name, weight in model.named_parameters():
        bound = {"embedding.weight": 0.1, "head.bias": 0.0}.get(name, 0.1 if ".2." not in name else 40**-0.5)
        assert weight.abs().max() <= bound, name
        assert bound == 0 or weight.abs().max() > 0.8 * bound, name


def test_a_window_model_sees_its_window_only() -> None:
    model = build("window_lm", n=4, width=8, hidden=8, vocab=11, context=9)
    ids = torch.randint(11, (1, 9))
    changed = ids.clone()
    changed[0, 2] = (ids[0, 2] + 1) % 11
    apart = (model(ids) - model(changed)).abs().amax((0, 2)) > 0
    assert apart.tolist() == [False, False, True, True, True, False, False, False, False]


@pytest.mark.parametrize("name", ["awd_lstm", "mogrifier_lm", "qrnn_lm"])
def test_no_state_grows_with_the_text(name: str) -> None:
    assert summarize(config(name, vocab=100)).kv_bytes_per_token == 0


def test_half_precision_streams_pass_through_every_recurrent_preset() -> None:
    for name in ("rnn_lm", "gru_lm", "lstm_lm", "awd_lstm", "mogrifier_lm", "qrnn_lm", "window_lm"):
        model = build(name, width=8, vocab=11, context=6)
        model.compute = torch.bfloat16
        documents = torch.tensor([[0, 0, 1, 1, 1, 1]])
        hidden = model(torch.randint(11, (1, 6)), Context(documents=documents))
        assert hidden.dtype == torch.bfloat16, name
        model.head.nll(hidden, torch.randint(11, (1, 6))).sum().backward()
