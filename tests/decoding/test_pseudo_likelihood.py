"""Hidden tokens are told one by one: together as alone, whatever stands beside them in the batch."""

from collections.abc import Iterator

import pytest
import torch

from heddle.core import UsageError
from heddle.decoding.scoring import MaskedText, masked, nll_masked
from heddle.models.networks import Encoder
from heddle.models.presets import build

VOCAB, CONTEXT, MASK, BEGIN = 31, 16, 30, 0
NAMES = ["bert-base-masked", "bert-base-pretraining", "roberta-base-masked", "distilbert-masked", "albert-base-masked"]
SMALL = {"layers": 2, "width": 16, "heads": 2, "vocab": VOCAB, "context": CONTEXT}


def encoder(name: str = NAMES[0]) -> Encoder:
    model = build(name, **SMALL)
    assert isinstance(model, Encoder)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    return model.eval()


def by_hand(model: Encoder, text: MaskedText) -> list[float]:
    row = [BEGIN, *text.left, *text.ids]
    before, found = len(row) - len(text.ids), []
    for token in range(len(text.ids)):
        first, last = (token, token + 1) if text.spans is None else text.spans[token]
        shown = [MASK if before + first <= i < before + last else id for i, id in enumerate(row)]
        with torch.no_grad():
            probs = model.scores("masked_token", torch.tensor([shown]))[0, before + token].log_softmax(-1)
        found.append(-float(probs[row[before + token]]))
    return found


TEXTS = [
    MaskedText([1, 2, 3]),
    MaskedText([]),
    MaskedText([4], left=[5, 6]),
    MaskedText([7, 8, 9, 10, 11, 7], spans=[(0, 2), (1, 2), (2, 5), (3, 5), (4, 5), (0, 6)]),
    MaskedText(list(range(1, CONTEXT))),
]


@pytest.mark.parametrize("name", NAMES)
def test_hidden_tokens_cost_what_a_pass_of_their_own_says(name: str) -> None:
    model = encoder(name)
    for losses, text in zip(nll_masked(model, TEXTS, MASK, BEGIN), TEXTS, strict=True):
        assert losses.tolist() == pytest.approx(by_hand(model, text), abs=1e-4)


def test_texts_are_read_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masked, "BATCH", 32)
    monkeypatch.setattr(masked, "AHEAD", 2)
    read = 0

    def texts() -> Iterator[MaskedText]:
        nonlocal read
        for number in range(30):
            read += 1
            yield MaskedText([1 + number % 29] * (1 + number % 5))

    model = encoder()
    found = nll_masked(model, texts(), MASK, BEGIN)
    first = next(found)
    assert read < 12
    rest = [first, *found]
    assert len(rest) == 30
    for number in (0, 7, 29):
        alone = by_hand(model, MaskedText([1 + number % 29] * (1 + number % 5)))
        assert rest[number].tolist() == pytest.approx(alone, abs=1e-4)


def test_what_cannot_be_read_is_refused() -> None:
    for text, hint in (
        (MaskedText([1] * CONTEXT), f"{CONTEXT + 1} tokens, the beginning counted, are more than the model's context"),
        (MaskedText([VOCAB]), f"want ids from 0 to {VOCAB - 1}, got {VOCAB}"),
        (MaskedText([-1]), "got -1"),
    ):
        with pytest.raises(UsageError, match=hint):
            list(nll_masked(encoder(), [text], MASK, BEGIN))
    plain = build("bert-base", **SMALL)
    assert isinstance(plain, Encoder)
    with pytest.raises(UsageError, match="with the output masked_token; it has: none"):
        list(nll_masked(plain, [], MASK, BEGIN))
