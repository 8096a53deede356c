"""Models built by hand are shown as they are: a copy head, a counting LSTM, and the documents' worked examples."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from heddle.core import ConfigError, UsageError
from heddle.explain import ExplainOptions, Explanation, explain
from heddle.explain.attribution.attribution import score_of
from heddle.explain.inputs import read
from heddle.models.networks import LanguageModel, LanguageModelConfig
from heddle.nn.attention import AttentionConfig
from heddle.nn.base import Module, PartConfig
from heddle.nn.layers import LayerNormConfig, NoNormConfig, NormConfig
from heddle.nn.positions import LearnedPositionConfig, SinusoidalPositionConfig
from heddle.nn.recurrent import LSTMConfig
from heddle.nn.stack import BlockConfig, BranchConfig, ReplaceConfig

TOKENS, PLACES = 5, 8


@torch.no_grad()
def model_of(part: PartConfig, width: int, weights: dict[str, Tensor], **fields: Any) -> LanguageModel:
    """Return a model of one branch whose weights are zero but for those given."""
    norm: NormConfig = fields.pop("branch_norm", NoNormConfig())
    join = fields.pop("join", None)
    branch = BranchConfig(part=part, norm=norm) if join is None else BranchConfig(part=part, norm=norm, join=join)
    start = {"vocab": TOKENS, "context": PLACES, "plan": BlockConfig(branches=(branch,)), "width": width}
    model = LanguageModelConfig(**{**start, **fields}).build(0).double().eval()
    for name, weight in model.named_parameters():
        weight.copy_(weights.get(name, torch.ones_like(weight) if name.endswith("norm.weight") else 0 * weight))
    for module in model.modules():
        if isinstance(module, Module):
            module.reset_buffers()  # in double precision
    return model


def look(model: LanguageModel, ids: list[int], *what: str, **options: Any) -> Explanation:
    return explain(model, None, ids, ExplainOptions(what=what, **options))


# --- a copy head ------------------------------------------------------------------------------------------------------


def copier() -> LanguageModel:
    """Return a model that attends to the place before, and predicts its token: token, place and copy side by side."""
    width = TOKENS + PLACES + TOKENS
    place = slice(TOKENS, TOKENS + PLACES)
    embedding, positions = torch.zeros(TOKENS, width), torch.zeros(PLACES, width)
    embedding[:, :TOKENS], positions[:, place] = torch.eye(TOKENS), torch.eye(PLACES)
    query, key, value = (torch.zeros(width, width) for _ in range(3))
    query[place, place] = 200 * torch.diag(torch.ones(PLACES - 1), 1)  # place p asks for place p - 1
    key[place, place] = torch.eye(PLACES)
    value[TOKENS + PLACES :, :TOKENS] = torch.eye(TOKENS)
    head = torch.zeros(TOKENS, width)
    head[:, TOKENS + PLACES :] = 10 * torch.eye(TOKENS)
    names = {"query": query, "key": key, "value": value, "output": torch.eye(width)}
    weights = {f"stack.mixer.part.{name}.weight": matrix for name, matrix in names.items()}
    weights |= {"embedding.weight": embedding, "position.weight": positions, "head.weight": head}
    return model_of(AttentionConfig(heads=1), width, weights, position=LearnedPositionConfig())


def test_a_copy_head_is_shown_to_copy() -> None:
    ids = [3, 1, 4, 0, 2]
    found = look(copier(), ids, "attention", "probabilities", "lens", "residual", "attribution")
    (one,) = found["attention"].maps
    before = torch.diag(torch.ones(len(ids) - 1, dtype=torch.float64), -1)
    assert torch.allclose(one.weights[0][1:], before[1:], atol=1e-6)
    places = found["probabilities"].places
    assert [place.best[0].id for place in places[1:]] == ids[:-1]
    assert all(place.best[0].probability > 0.999 for place in places[1:])
    embedded, after = found["lens"].layers
    assert all(abs(place[0].probability - 1 / TOKENS) < 1e-9 for place in embedded.places)
    assert [place[0].id for place in after.places[1:]] == ids[:-1]
    for method in ("gradient_x_input", "integrated_gradients", "occlusion"):
        values = found["attribution"].methods[method]["text"]
        assert max(range(len(ids)), key=values.__getitem__) == len(ids) - 2, method
    rollout = found["attribution"].methods["attention_rollout"]["text"]
    assert rollout == pytest.approx([0, 0, 0, 0.5, 0.5], abs=1e-6)


def test_why_one_token_and_not_another_is_the_difference_of_both() -> None:
    model, ids = copier(), [3, 1, 4, 0, 2]
    reading = explain(model, None, ids, ExplainOptions(what=("probabilities",)))
    logprobs = {one.id: math.log(one.probability) for one in reading["probabilities"].places[-1].best}
    score = score_of(read(model, None, ids, ExplainOptions()), (0,), (3,))(1)
    assert float(score.detach()) == pytest.approx(logprobs[0] - logprobs[3], abs=1e-9)


def test_patching_finds_the_one_place_that_matters() -> None:
    model, clean, corrupted = copier(), [3, 1, 4, 0, 2], [3, 1, 4, 1, 2]
    found = look(model, clean, "patching", corrupted=corrupted)["patching"]
    assert found.layers == ("stack",)
    assert found.effects[0].tolist() == pytest.approx([0, 0, 0, 0, 1], abs=1e-9)  # after the layer it is copied


# --- a counting LSTM --------------------------------------------------------------------------------------------------


def counter() -> LanguageModel:
    """Return an LSTM of one unit whose cell counts token 1."""
    embedding = torch.zeros(TOKENS, 2)
    embedding[1, 0] = 1.0
    big = 40.0
    gates = torch.zeros(4, 2)
    gates[0, 0] = 2 * big  # the input gate opens for token 1 alone
    bias = torch.tensor([-big, big, big, big])
    weights = {"stack.mixer.part.input_weight": gates, "stack.mixer.part.input_bias": bias}
    weights["embedding.weight"] = embedding
    return model_of(LSTMConfig(hidden=1), 2, weights, join=ReplaceConfig())


def test_a_counting_lstm_is_shown_to_count() -> None:
    ids = [0, 1, 1, 2, 1, 3]
    (cell,) = look(counter(), ids, "gates")["gates"].cells
    ones = [float(id == 1) for id in ids]
    assert cell.values["input"][:, 0].tolist() == pytest.approx(ones, abs=1e-12)
    assert cell.values["forget"][:, 0].tolist() == pytest.approx([1.0] * 6, abs=1e-12)
    counts = [sum(ones[: at + 1]) for at in range(6)]
    assert cell.values["cell"][:, 0].tolist() == pytest.approx(counts, abs=1e-9)
    assert cell.values["hidden"][:, 0].tolist() == pytest.approx([math.tanh(count) for count in counts], abs=1e-9)
    assert cell.error < 1e-12
    assert cell.memory()[0] > 1e5
    trace = look(counter(), ids, "trace")["trace"]
    assert torch.equal(trace["stack.mixer.cell"], cell.values["cell"])


# --- the worked examples, by the real modules -------------------------------------------------------------------------


def identities(width: int, embedding: Tensor, **fields: Any) -> LanguageModel:
    """Return one head of attention whose projections are the identity."""
    names = ("query", "key", "value", "output")
    weights = {f"stack.mixer.part.{name}.weight": torch.eye(width) for name in names} | {"embedding.weight": embedding}
    return model_of(AttentionConfig(heads=1), width, weights, vocab=len(embedding), **fields)


def test_dragons_breathe_fire() -> None:
    found = look(identities(3, torch.eye(3), sight="all"), [0, 1, 2], "attention", "trace")
    rows = found["attention"].maps[0].weights[0]
    assert rows[1].tolist() == pytest.approx([0.2645, 0.4711, 0.2645], abs=5e-5)
    for place in range(3):
        assert rows[place].tolist() == pytest.approx(
            torch.tensor([0.4711, 0.2645, 0.2645]).roll(place).tolist(), abs=5e-5
        )
    assert found["trace"]["stack.mixer.scores"][0, 1].tolist() == pytest.approx([0, 1 / math.sqrt(3), 0], abs=5e-5)


def test_scores_over_the_root_of_the_width() -> None:
    embedding = torch.zeros(4, 64, dtype=torch.float64)
    embedding[:, 0] = torch.tensor([92, 124, 22, 8], dtype=torch.float64) / math.sqrt(92)  # token 0 asks
    found = look(identities(64, embedding, sight="all"), [0, 1, 2, 3], "attention", "trace")
    assert (8 * found["trace"]["stack.mixer.scores"][0, 0]).tolist() == pytest.approx([92, 124, 22, 8], abs=1e-4)
    wanted = [0.0180, 0.9820, 0.0, 0.0]
    assert found["attention"].maps[0].weights[0, 0].tolist() == pytest.approx(wanted, abs=5e-5)


def test_sinusoidal_positions() -> None:
    model = identities(4, torch.zeros(2, 4), position=SinusoidalPositionConfig())
    found = look(model, [0, 0], "trace")["trace"]["position"]
    assert found[0].tolist() == pytest.approx([0.0, 1.0, 0.0, 1.0], abs=5e-5)
    assert found[1].tolist() == pytest.approx([0.8415, 0.5403, 0.01, 1.0], abs=5e-5)


def test_layer_norm_without_epsilon() -> None:
    embedding = torch.tensor([[0.6, 0.8, 0.7, 0.7], [0.6, 0.8, 0.7, 0.7]])
    model = identities(4, embedding, branch_norm=LayerNormConfig(eps=0.0))
    found = look(model, [0, 1], "trace")["trace"]["stack.mixer.norm"]
    assert found[0].tolist() == pytest.approx([-1.4142, 1.4142, 0.0, 0.0], abs=5e-5)


def test_position_i_sees_j_when_j_is_at_most_i() -> None:
    rows = look(identities(3, torch.eye(3)), [0, 1, 2], "attention")["attention"].maps[0].weights[0]
    assert torch.equal(rows > 0, torch.ones(3, 3, dtype=torch.bool).tril())


def test_the_probability_of_a_sequence_is_a_product() -> None:
    model, ids = copier(), [3, 1, 1, 2]
    found = look(model, ids, "probabilities")["probabilities"]
    with torch.no_grad():
        rows = model.logits(torch.tensor([ids]))[0].softmax(-1)
    product = math.prod(float(rows[at, ids[at + 1]]) for at in range(3))
    assert math.exp(sum(one for one in found.logprobs if one is not None)) == pytest.approx(product, rel=1e-6)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"what": ("atention",)}, "what: want one of probabilities, .*did you mean 'attention'"),
        ({"instead": "x"}, "instead: want it with attribution or patching in `what`, got neither"),
        ({"corrupted": "x"}, "corrupted: want it with patching in `what`, got none"),
        ({"what": ("patching",)}, "patching: want a second text of as many tokens in `corrupted`, got none"),
        ({"top": 0}, "top: want at least 1, got 0"),
    ],
)
def test_wrong_options_are_refused_in_one_line(options: Any, message: str) -> None:
    with pytest.raises((ConfigError, UsageError), match=message) as caught:
        ExplainOptions(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("made", "what", "message"),
    [
        (counter, "attention", "attention: want a model with attention or filters, got one without"),
        (counter, "lens", "lens: want layers that only add to the stream .*, got replace in stack.mixer"),
        (counter, "residual", "residual: want layers that only add"),
        (counter, "experts", "experts: want a mixture of experts, got a model without"),
        (copier, "gates", "gates: want a recurrent model, got one without cells"),
    ],
)
def test_what_a_model_cannot_show_is_refused_in_one_line(made: Any, what: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        look(made(), [0, 1, 2], what)
    assert "\n" not in str(caught.value)
    usual = explain(made(), None, [0, 1, 2])
    assert what not in usual.sections
