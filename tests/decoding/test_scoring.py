"""ScoringWindows score each token once, with as much context as they promise."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.cases import CONTEXT, VOCAB, of_presets

from heddle.core import ConfigError, UsageError
from heddle.decoding.scoring import (
    Continuation,
    ScoringWindows,
    any_token_loss,
    nll_given_source,
    nll_sliding_window,
    scoring,
    scoring_windows,
)
from heddle.models.networks import EncoderDecoder, LanguageModel, LanguageModelConfig
from heddle.models.presets import build

BEGIN = 0
CONFIGS = {
    case.name.removeprefix("preset="): case.config
    for case in of_presets()
    if isinstance(case.config, LanguageModelConfig)
}


def model(name: str = "first") -> LanguageModel:
    return CONFIGS[name].build(3).double().eval()


def by_hand(model: LanguageModel, ids: list[int], windows: ScoringWindows) -> list[float]:
    """Score each token in a forward pass of its own, with exactly the context that its window gives it."""
    row, found = [BEGIN, *ids], []
    for i, target in enumerate(ids):
        late = max(0, math.ceil((i + 1 - windows.length) / windows.stride))
        start = late * windows.stride
        probs = model.logits(torch.tensor([row[start : i + 1]]))[0, -1].log_softmax(-1)
        found.append(-probs[target].item())
    return found


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("length", "stride"), [(6, 6), (6, 2), (7, 3), (5, 1), (CONTEXT, CONTEXT // 2)])
def test_each_token_has_the_context_of_its_window(name: str, length: int, stride: int) -> None:
    windows = ScoringWindows(length=length, stride=stride)
    documents = [[(3 * i + 1) % VOCAB for i in range(n)] for n in (1, 20, 6, 7)]
    found = list(nll_sliding_window(model(name), documents, windows, BEGIN))
    for losses, ids in zip(found, documents, strict=True):
        assert losses.tolist() == pytest.approx(by_hand(model(name), ids, windows), abs=1e-5)


@given(targets=st.integers(0, 60), length=st.integers(1, 20), data=st.data())
@settings(deadline=None, max_examples=60)
def test_windows_score_each_token_once_with_context(targets: int, length: int, data: st.DataObject) -> None:
    windows = ScoringWindows(length=length, stride=data.draw(st.integers(1, length)))
    ids = torch.arange(targets + 1).numpy()
    scored: list[int] = []
    for window in scoring._windows(0, ids, 0, windows):
        count = len(window.ids) - 1
        assert count <= windows.length
        assert window.ids[0] == 0 or window.skip >= windows.length - windows.stride
        assert window.ids[window.skip] == window.place
        scored += range(window.place, window.place + count - window.skip)
    assert scored == list(range(targets))


def test_an_empty_document_has_no_losses() -> None:
    found = list(nll_sliding_window(model(), [[], [1], []], scoring_windows(model()), BEGIN))
    assert [len(losses) for losses in found] == [0, 1, 0]


def test_documents_are_read_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "BATCH", 16)
    monkeypatch.setattr(scoring, "AHEAD", 2)
    read = 0

    def documents():  # type: ignore[no-untyped-def]
        nonlocal read
        for number in range(50):
            read += 1
            yield [number % VOCAB] * 10

    found = nll_sliding_window(model(), documents(), scoring_windows(model()), BEGIN)
    next(found)
    assert read < 10
    rest = list(found)
    assert len(rest) == 49
    whole = [
        next(nll_sliding_window(model(), [[n % VOCAB] * 10], scoring_windows(model()), BEGIN)) for n in range(1, 50)
    ]
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(rest, whole, strict=True))


def test_defaults_are_the_context_and_half_of_it() -> None:
    assert scoring_windows(model()) == ScoringWindows(length=CONTEXT, stride=CONTEXT // 2)
    assert scoring_windows(model(), 7) == ScoringWindows(length=7, stride=3)
    assert scoring_windows(model(), 1) == ScoringWindows(length=1, stride=1)


def test_impossible_windows_are_refused() -> None:
    for length, stride, field in ((0, 1, "window"), (4, 5, "stride"), (4, 0, "stride")):
        with pytest.raises(ConfigError, match=f"^{field}: "):
            ScoringWindows(length=length, stride=stride)
    with pytest.raises(UsageError, match="learned positions"):
        list(nll_sliding_window(model("gpt2"), [[1]], ScoringWindows(length=CONTEXT + 1, stride=1), BEGIN))


def test_a_window_past_the_context_is_for_models_whose_positions_go_on() -> None:
    windows = ScoringWindows(length=2 * CONTEXT, stride=CONTEXT)
    losses = next(nll_sliding_window(model("llama"), [[1] * 3 * CONTEXT], windows, BEGIN))
    assert losses.tolist() == pytest.approx(by_hand(model("llama"), [1] * 3 * CONTEXT, windows), abs=1e-5)


@pytest.mark.parametrize("wrong", [-1, VOCAB])
def test_an_unknown_id_is_refused(wrong: int) -> None:
    with pytest.raises(UsageError, match=f"got {wrong}"):
        list(nll_sliding_window(model(), [[1, wrong]], scoring_windows(model()), BEGIN))


# --- after a context --------------------------------------------------------------------------------------------------


@given(wanted=st.integers(0, 40), known=st.integers(0, 60), length=st.integers(1, 20), data=st.data())
@settings(deadline=None, max_examples=100)
def test_what_follows_a_context_is_scored_once_with_enough_of_it(
    wanted: int, known: int, length: int, data: st.DataObject
) -> None:
    windows = ScoringWindows(length=length, stride=data.draw(st.integers(1, length)))
    ids = torch.arange(known + wanted + 1).numpy()
    near, kept = scoring._trim_context(ids, known, windows)
    assert len(near) - kept == len(ids) - known
    cut = list(scoring._windows(0, near, kept, windows))
    scored: list[int] = []
    for window in cut:
        assert len(window.ids) - 1 <= length
        targets = window.ids[window.skip + 1 :].tolist()
        least = min(windows.length - windows.stride, targets[0])  # tokens before the first that it scores
        assert targets[0] - window.ids[0] >= max(1, least)
        scored += targets
    assert scored == list(range(known + 1, known + wanted + 1))
    if 0 < wanted <= windows.stride:
        assert len(cut) == 1


@pytest.mark.parametrize("name", ["first", "lstm_lm"])
def test_what_follows_a_context_costs_what_it_costs_in_the_whole(name: str) -> None:
    whole = [(3 * i + 1) % VOCAB for i in range(CONTEXT - 1)]
    built = model(name)
    (losses,) = nll_sliding_window(built, [whole], scoring_windows(built), BEGIN)
    cuts = (0, 1, CONTEXT // 2, CONTEXT - 1)
    found = nll_sliding_window(
        built, [Continuation(whole[cut:], whole[:cut]) for cut in cuts], scoring_windows(built), BEGIN
    )
    for cut, part in zip(cuts, found, strict=True):
        assert part.tolist() == pytest.approx(losses[cut:].tolist(), abs=1e-5)


def test_one_of_some_costs_what_their_probabilities_add_up_to() -> None:
    built, ids, members = model(), [1, 2, 3, 4, 5, 2], [2, 5, 7]
    (losses,) = nll_sliding_window(built, [ids], scoring_windows(built), BEGIN, any_token_loss(built, members))
    for place, id in enumerate(ids):
        probs = built.logits(torch.tensor([[BEGIN, *ids[:place]]]))[0, -1].softmax(-1)
        wanted = -math.log(probs[members].sum().item()) if id in members else 0.0
        assert losses[place].item() == pytest.approx(wanted, abs=1e-5)
    (none,) = nll_sliding_window(built, [ids], scoring_windows(built), BEGIN, any_token_loss(built, []))
    assert none.tolist() == [0.0] * len(ids)


@pytest.mark.parametrize("preset", ["transformer_pre_norm", "seq2seq_attention"])
def test_a_target_after_a_context_costs_what_it_costs_in_the_whole(preset: str) -> None:
    built = build(preset, layers=1, width=16, vocab=VOCAB, context=CONTEXT, **({"heads": 2} if "pre" in preset else {}))
    assert isinstance(built, EncoderDecoder)
    built.double().eval()
    whole, source = [4, 5, 6, 7, 8], [[1, 2, 3], [9]]
    losses = nll_given_source(built, source, [whole, whole], BEGIN)
    found = nll_given_source(built, source, [Continuation(whole[2:], whole[:2]), Continuation([], whole)], BEGIN)
    assert found[0].tolist() == pytest.approx(losses[0][2:].tolist(), abs=1e-6)
    assert found[1].tolist() == []
    if preset == "transformer_pre_norm":
        with pytest.raises(UsageError, match=f"text: {CONTEXT + 1} tokens are more than the model's context"):
            nll_given_source(built, [[1]], [[1] * (CONTEXT + 1)], BEGIN)
