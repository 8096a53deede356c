"""Windows score each token once, with as much context as they promise."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.cases import CONTEXT, VOCAB, of_presets

from heddle.core import ConfigError, UsageError
from heddle.decoding import Windows, nll_of, scoring, windows_for
from heddle.models import LanguageModel, LanguageModelConfig

BEGIN = 0
CONFIGS = {
    case.name.removeprefix("preset="): case.config
    for case in of_presets()
    if isinstance(case.config, LanguageModelConfig)
}


def model(name: str = "first") -> LanguageModel:
    return CONFIGS[name].build(3).double().eval()


def by_hand(model: LanguageModel, ids: list[int], windows: Windows) -> list[float]:
    """Score each token in a forward pass of its own, with exactly the context that its window gives it."""
    row, found = [BEGIN, *ids], []
    for i, target in enumerate(ids):
        late = max(0, math.ceil((i + 1 - windows.length) / windows.stride))
        start = late * windows.stride
        odds = model.logits(torch.tensor([row[start : i + 1]]))[0, -1].log_softmax(-1)
        found.append(-odds[target].item())
    return found


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("length", "stride"), [(6, 6), (6, 2), (7, 3), (5, 1), (CONTEXT, CONTEXT // 2)])
def test_each_token_has_the_context_of_its_window(name: str, length: int, stride: int) -> None:
    windows = Windows(length=length, stride=stride)
    documents = [[(3 * i + 1) % VOCAB for i in range(n)] for n in (1, 20, 6, 7)]
    found = list(nll_of(model(name), documents, windows, BEGIN))
    for losses, ids in zip(found, documents, strict=True):
        assert losses.tolist() == pytest.approx(by_hand(model(name), ids, windows), abs=1e-5)


@given(targets=st.integers(0, 60), length=st.integers(1, 20), data=st.data())
@settings(deadline=None, max_examples=60)
def test_windows_score_each_token_once_with_context(targets: int, length: int, data: st.DataObject) -> None:
    windows = Windows(length=length, stride=data.draw(st.integers(1, length)))
    ids = torch.arange(targets + 1).numpy()
    scored: list[int] = []
    for window in scoring._cut(0, ids, windows):
        count = len(window.ids) - 1
        assert count <= windows.length
        assert window.start == 0 or window.skip >= windows.length - windows.stride
        scored += range(window.start + window.skip, window.start + count)
    assert scored == list(range(targets))


def test_an_empty_document_has_no_losses() -> None:
    found = list(nll_of(model(), [[], [1], []], windows_for(model()), BEGIN))
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

    found = nll_of(model(), documents(), windows_for(model()), BEGIN)
    next(found)
    assert read < 10
    rest = list(found)
    assert len(rest) == 49
    whole = [next(nll_of(model(), [[n % VOCAB] * 10], windows_for(model()), BEGIN)) for n in range(1, 50)]
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(rest, whole, strict=True))


def test_defaults_are_the_context_and_half_of_it() -> None:
    assert windows_for(model()) == Windows(length=CONTEXT, stride=CONTEXT // 2)
    assert windows_for(model(), 7) == Windows(length=7, stride=3)
    assert windows_for(model(), 1) == Windows(length=1, stride=1)


def test_impossible_windows_are_refused() -> None:
    for length, stride, field in ((0, 1, "window"), (4, 5, "stride"), (4, 0, "stride")):
        with pytest.raises(ConfigError, match=f"^{field}: "):
            Windows(length=length, stride=stride)
    with pytest.raises(UsageError, match="learned positions"):
        list(nll_of(model("gpt2"), [[1]], Windows(length=CONTEXT + 1, stride=1), BEGIN))


def test_a_window_past_the_context_is_for_models_whose_positions_go_on() -> None:
    windows = Windows(length=2 * CONTEXT, stride=CONTEXT)
    losses = next(nll_of(model("llama"), [[1] * 3 * CONTEXT], windows, BEGIN))
    assert losses.tolist() == pytest.approx(by_hand(model("llama"), [1] * 3 * CONTEXT, windows), abs=1e-5)


@pytest.mark.parametrize("wrong", [-1, VOCAB])
def test_an_unknown_id_is_refused(wrong: int) -> None:
    with pytest.raises(UsageError, match=f"got {wrong}"):
        list(nll_of(model(), [[1, wrong]], windows_for(model()), BEGIN))
