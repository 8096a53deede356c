"""Beams are those of `transformers`, ids and scores, on random GPT-2-, T5- and BART-shaped models.

Theirs and ours agree on what a score is (log-probability over new tokens, the end included, to the power of the length
penalty) and on who ends (candidates among the best `beams` of a step). `early_stopping="never"` stops where no live
sequence can improve the list, as ours always does. Their other settings are equal by definition only in part: `False`
takes scores to be best at the current length, which holds for penalties of 0 and below; `True` stops at `beams`
finished sequences whatever may follow, which is another search.

What differs, and why: theirs adds up in float32 and ours in float64, so scores agree to 1e-4 only; of one beam theirs
is greedy and has no score.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pytest
import torch
from decoding.reference import search
from models.test_hugging_face import CONTEXT, HEADS, LAYERS, VOCAB, WIDTH, gpt2_weights
from models.test_hugging_face_pairs import bart_pair, bart_weights, t5_pair, t5_weights

from heddle.core import replace
from heddle.decoding.generation import GenerationConfig, GreedySearch, generate
from heddle.decoding.runtime import Request
from heddle.decoding.sampling import PenaltyConfig
from heddle.decoding.search import BeamSearch
from heddle.models.networks import AutoregressiveModel, EncoderDecoder
from heddle.models.presets import build

hf = pytest.importorskip("transformers")

MOST, PADDING = 10, 60
STOPS = (2, 9, 20, 30, 44, 55)  # so many that sequences end early and late
BEGIN = {"gpt2": None, "t5": 0, "bart": 2}
PENALTIES = (0.0, 0.6, 1.0, 2.0)
PROMPTS = [[5, 9, 3, 30, 7], [12, 4], [8, 8, 21]]
Found = list[list[tuple[list[int], float]]]


def gpt2() -> tuple[Any, Any]:
    hf_config = hf.GPT2Config(vocab_size=VOCAB, n_positions=CONTEXT, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS)
    return hf.GPT2LMHeadModel(hf_config), build(
        "gpt2", layers=LAYERS, width=WIDTH, heads=HEADS, vocab=VOCAB, context=CONTEXT
    )


SHAPES: dict[str, tuple[Callable[[], tuple[Any, Any]], Callable[[Any], Any]]] = {
    "gpt2": (gpt2, gpt2_weights),
    "t5": (lambda: t5_pair(gated=False)[:2], lambda weights: t5_weights(weights, gated=False)),
    "bart": (lambda: bart_pair(marian=False)[:2], lambda weights: bart_weights(weights, positions=True)),
}


@cache
def pair(shape: str, seed: int) -> tuple[Any, AutoregressiveModel]:
    """Return their model and ours with the same weights, far from even probabilities."""
    torch.manual_seed(seed)
    built, renamed = SHAPES[shape]
    theirs, ours = built()
    with torch.no_grad():
        for weight in theirs.parameters():
            weight += 0.15 * torch.randn_like(weight)
    theirs.generation_config = hf.GenerationConfig()  # without the options of the model's own config
    ours.load_weights(renamed(theirs.state_dict()))
    return theirs.eval(), ours.eval()


def searched(shape: str, seed: int, config: GenerationConfig) -> Found:
    """Return what our beams find."""
    _, ours = pair(shape, seed)
    given = [Request((), p) if isinstance(ours, EncoderDecoder) else Request(p) for p in PROMPTS]
    found = search(ours, given, replace(config, stop=STOPS, begin=BEGIN[shape], max_tokens=MOST))
    return [[(h.ids, h.score) for h in best] for best in found]


def generated(shape: str, seed: int, **options: Any) -> Found:
    """Return what their beams find for all prompts at once, padded on the left where there is no encoder."""
    theirs, _ = pair(shape, seed)
    longest = max(map(len, PROMPTS))
    fill = [[PADDING] * (longest - len(p)) for p in PROMPTS]
    ids = [[*f, *p] if shape == "gpt2" else [*p, *f] for f, p in zip(fill, PROMPTS, strict=True)]
    real = [[0] * len(f) + [1] * len(p) if shape == "gpt2" else [1] * len(p) + [0] * len(f)
            for f, p in zip(fill, PROMPTS, strict=True)]  # fmt: skip
    hf_config = hf.GenerationConfig(
        max_new_tokens=MOST, do_sample=False, eos_token_id=list(STOPS), pad_token_id=PADDING, output_scores=True,
        return_dict_in_generate=True, decoder_start_token_id=BEGIN[shape], **{"early_stopping": "never"} | options,
    )  # fmt: skip
    out = theirs.generate(torch.tensor(ids), attention_mask=torch.tensor(real), generation_config=hf_config)
    rows = list(_rows(out.sequences[:, longest if shape == "gpt2" else 1 :].tolist()))
    scores = out.sequences_scores.tolist() if hf_config.num_beams > 1 else [0.0] * len(rows)
    each = len(rows) // len(PROMPTS)
    return [list(zip(rows[i : i + each], scores[i : i + each], strict=True)) for i in range(0, len(rows), each)]


def _rows(rows: list[list[int]]) -> Iterator[list[int]]:
    for row in rows:
        yield row[: next((i for i, id in enumerate(row) if id in STOPS), len(row)) + 1]


def agree(found: Found, wanted: Found) -> None:
    assert [[ids for ids, _ in best] for best in found] == [[ids for ids, _ in best] for best in wanted]
    scores = [[score for best in lists for _, score in best] for lists in (found, wanted)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_all_beams_and_scores_are_those_of_hugging_face(shape: str) -> None:
    for at, (beams, penalty) in enumerate(itertools.product((2, 3, 4, 5), PENALTIES)):
        config = GenerationConfig(samples=beams, strategy=BeamSearch(beams=beams, length_penalty=penalty))
        options = {"num_beams": beams, "num_return_sequences": beams, "length_penalty": penalty}
        seed = at % 5  # five models for each shape, whose turn comes with other beams and penalties each time
        agree(searched(shape, seed, config), generated(shape, seed, **options))


@pytest.mark.parametrize("shape", SHAPES)
def test_one_beam_is_hugging_faces_greedy(shape: str) -> None:
    wanted = [[ids for ids, _ in best] for best in generated(shape, 0, num_beams=1, early_stopping=False)]
    assert [
        [ids for ids, _ in best] for best in searched(shape, 0, GenerationConfig(strategy=BeamSearch(beams=1)))
    ] == wanted
    _, ours = pair(shape, 0)
    config = GenerationConfig(max_tokens=MOST, stop=STOPS, begin=BEGIN[shape], strategy=GreedySearch())
    pairs = isinstance(ours, EncoderDecoder)
    greedy = generate(ours, [[]] * 3, config, PROMPTS) if pairs else generate(ours, PROMPTS, config)
    assert [[ids] for ids in greedy] == wanted


@pytest.mark.parametrize("penalty", [0.0, -0.7])
def test_their_default_early_stopping_is_ours_where_longer_is_never_better(penalty: float) -> None:
    config = GenerationConfig(samples=3, strategy=BeamSearch(beams=4, length_penalty=penalty))
    options = {"num_beams": 4, "num_return_sequences": 3, "length_penalty": penalty}
    for shape in SHAPES:
        agree(searched(shape, 0, config), generated(shape, 0, **options, early_stopping=False))


@pytest.mark.parametrize(
    ("options", "config"),
    [
        ({"repetition_penalty": 1.4}, GenerationConfig(penalties=PenaltyConfig(repetition=1.4))),
        ({"min_new_tokens": 5}, GenerationConfig(min_tokens=5)),
        (
            {"sequence_bias": [[[7], 4.0], [[12], -3.0]]},
            GenerationConfig(penalties=PenaltyConfig(bias=((7, 4.0), (12, -3.0)))),
        ),
    ],
    ids=["repetition", "least", "bias"],
)
def test_penalties_and_a_least_length_are_those_of_hugging_face(
    options: dict[str, Any], config: GenerationConfig
) -> None:
    """Neither divides up anew what penalties leave. (A bias above 0 can lift a score above 0; theirs may then stop
    too soon, ours goes on to the last length: here both come out the same.)
    """
    for shape in ("gpt2", "bart"):
        beams = replace(config, samples=3, strategy=BeamSearch(beams=3, length_penalty=1.0))
        given = {"num_beams": 3, "num_return_sequences": 3, "length_penalty": 1.0}
        agree(searched(shape, 1, beams), generated(shape, 1, **given, **options))


@dataclass(frozen=True)
class Evens:
    """A constraint: even ids and odd ones take turns."""

    odd: bool = False

    def allowed(self) -> torch.Tensor:
        return torch.arange(VOCAB) % 2 == int(self.odd)

    def advance(self, id: int) -> "Evens":
        return Evens(not self.odd)

    @property
    def finished(self) -> bool:
        return False


def evens(_: int, ids: torch.Tensor, skip: int) -> list[int]:
    """Say the same to theirs."""
    return list(range((len(ids) - skip) % 2, VOCAB, 2))


def test_constrained_beams_are_those_that_hugging_face_allows_tokens_to() -> None:
    theirs, ours = pair("gpt2", 2)
    for prompt in PROMPTS:
        hf_config = hf.GenerationConfig(
            max_new_tokens=MOST, num_beams=4, num_return_sequences=4, length_penalty=1.0, early_stopping="never",
            eos_token_id=list(STOPS), pad_token_id=PADDING, output_scores=True, return_dict_in_generate=True,
        )  # fmt: skip
        out = theirs.generate(
            torch.tensor([prompt]),
            generation_config=hf_config,
            prefix_allowed_tokens_fn=partial(evens, skip=len(prompt)),
        )
        rows = list(_rows(out.sequences[:, len(prompt) :].tolist()))
        config = GenerationConfig(
            max_tokens=MOST, stop=STOPS, samples=4, strategy=BeamSearch(beams=4, length_penalty=1.0)
        )
        (best,) = search(ours, [Request(prompt, constraint=Evens())], config)
        assert all(i % 2 == id % 2 for h in best for i, id in enumerate(h.ids))
        agree([[(h.ids, h.score) for h in best]], [list(zip(rows, out.sequences_scores.tolist(), strict=True))])
