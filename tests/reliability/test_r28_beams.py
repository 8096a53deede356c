"""R28: beam search as wide as all there is finds the very best of all sequences; a narrower one is never above it.

Vocabulary 5, length 6, random models of every preset: recurrent, convolutional, attending, with experts, with and
without an encoder. The best is found by looking at every sequence, whose odds come from one reading without a state.
"""

import itertools
import random
from collections.abc import Iterator

import pytest
import torch
from decoding.reference import search
from laws.cases import SMALL, Given, loud, own_presets
from reliability.configs import reads_ids
from torch import Tensor

from heddle.core import replace
from heddle.decoding.generation import GenerationConfig, generation_config
from heddle.decoding.runtime import Request
from heddle.decoding.search import BeamSearch
from heddle.models.networks import AutoregressiveModel, EncoderDecoder
from heddle.nn.base import Context

VOCAB, LENGTH, END = 5, 6, 0
ALL = (VOCAB - 1) ** (LENGTH - 1) * VOCAB  # candidates of the last step: no other has more
NAMES = sorted(name for name, named in own_presets().items() if name in SMALL and reads_ids(named))
PENALTIES = (0.0, 0.6, 1.0, -0.5, 2.0)


def models(count: int) -> Iterator[tuple[str, AutoregressiveModel, Request, float]]:
    """Yield random models, one preset after the other, with a source where there is an encoder, and a penalty."""
    draw = random.Random(28)
    for turn in range(count):
        name = NAMES[turn % len(NAMES)]
        made = loud(own_presets()[name].make(**SMALL[name], vocab=VOCAB, context=12), seed=turn)
        made = made.model if isinstance(made, Given) else made
        source = [*draw.choices(range(1, VOCAB), k=draw.randint(1, 6)), END]
        yield name, made, Request([END], source if isinstance(made, EncoderDecoder) else None), PENALTIES[turn % 5]


@torch.no_grad()
def everything(model: AutoregressiveModel, request: Request, penalty: float) -> tuple[tuple[int, ...], float]:
    """Return the best of all sequences and its score, by one reading of everything that does not end."""
    words = torch.tensor(list(itertools.product(range(1, VOCAB), repeat=LENGTH - 1)))
    inputs = torch.cat((torch.full((len(words), 1), END), words), 1)
    memory = None
    if isinstance(model, EncoderDecoder):
        memory = model.encode(torch.tensor([request.source])).map(lambda t: t.expand(len(words), *t.shape[1:]))
    odds: Tensor = model.logits(inputs, Context(memory=memory)).log_softmax(-1)
    steps = odds[:, :-1].gather(-1, words[..., None])[..., 0]
    before = torch.cat((steps.new_zeros(len(words), 1), steps.cumsum(1)), 1)  # of what leads to each position
    totals = before[..., None] + odds  # row, position, next id
    scores = totals / torch.arange(1.0, LENGTH + 1, dtype=torch.float64)[:, None] ** penalty
    scores[:, :-1, 1:] = -torch.inf  # only the end ends before the last length
    row, place, id = torch.unravel_index(scores.argmax(), scores.shape)
    return (*words[row, :place].tolist(), int(id)), float(scores.max())


@pytest.fixture(autouse=True)
def beams_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a search be exhaustive: a user's is refused at 1,024 beams."""
    monkeypatch.setattr(generation_config, "MAX_ROWS", ALL)


def trial(count: int) -> None:
    right = narrower = 0
    for name, model, request, penalty in models(count):
        config = GenerationConfig(
            max_tokens=LENGTH, stop=(END,), strategy=BeamSearch(beams=ALL, length_penalty=penalty)
        )
        ((found,),) = search(model, [request], config)
        ids, best = everything(model, request, penalty)
        assert found.score == pytest.approx(best, abs=1e-9), name
        assert tuple(found.ids) == ids, name
        right += 1
        for beams in (1, 2, 4, 16):
            ((narrow,),) = search(
                model, [request], replace(config, strategy=BeamSearch(beams=beams, length_penalty=penalty))
            )
            assert narrow.score <= best + 1e-9, name
            narrower += narrow.score < best - 1e-9
    found = f"{right}/{count} full-width beams are the best of all sequences"
    print(f"R28 beams: {found}; of {4 * count} narrower ones 0 above it, {narrower} below")
    assert narrower  # else the models would be too easy to tell anything


def test_r28_full_width_beams_are_exhaustive_search() -> None:
    trial(12)


@pytest.mark.full
def test_r28_full_width_beams_are_exhaustive_search_at_full_size() -> None:
    trial(200)
