"""Contrastive search is its definition, for models that attend and models that carry a state, alone and in a batch."""

import dataclasses

import pytest
import torch
from laws.cases import CONTEXT, Given, cases, loud, pairs
from torch.nn.functional import cosine_similarity

from heddle.core import UsageError
from heddle.decoding.generation import ContrastiveSearch, GenerationConfig, complete, generate
from heddle.decoding.runtime import FinishReason, make_requests
from heddle.decoding.sampling import PenaltyConfig
from heddle.models.networks import AutoregressiveModel, EncoderDecoder
from heddle.nn.base import Context

NAMES = ["preset=first", "preset=gpt2", "preset=lstm_lm", "preset=bart", "preset=seq2seq_attention"]
CASES = {case.name: case for case in cases() + pairs() if case.stepwise}
PROMPTS = [[1, 2, 3], [4], [5, 6, 0, 8, 2]]
SOURCES = [[7, 3, 9, 1], [5], [2, 2, 8]]


def model(name: str) -> AutoregressiveModel:
    made = loud(CASES[name].config)
    return made.model if isinstance(made, Given) else made  # type: ignore[no-any-return]


@torch.no_grad()
def plainly(
    made: AutoregressiveModel, prompt: list[int], source: list[int], choice: ContrastiveSearch, count: int
) -> list[int]:
    """Search by the definition, reading everything anew for each candidate."""
    memory = made.encode(torch.tensor([source])) if isinstance(made, EncoderDecoder) else None
    row = list(prompt)
    for _ in range(count):
        probs = made.logits(torch.tensor([row]), Context(memory=memory))[0, -1].softmax(-1)
        worths = {}
        for id in probs.topk(choice.top_k).indices.tolist():
            *before, last = made.head.vectors(made(torch.tensor([[*row, id]]), Context(memory=memory)))[0]
            likeness = max(float(cosine_similarity(last, vector, dim=0)) for vector in before)
            worths[id] = (1 - choice.contrast) * float(probs[id]) - choice.contrast * likeness
        row.append(max(worths, key=lambda id: worths[id]))
    return row[len(prompt) :]


def write(made: AutoregressiveModel, rows: list[int], config: GenerationConfig) -> list[list[int]]:
    sources = [SOURCES[row] for row in rows] if isinstance(made, EncoderDecoder) else None
    return generate(made, [PROMPTS[row] for row in rows], config, sources)


@pytest.mark.parametrize("choice", [ContrastiveSearch(), ContrastiveSearch(top_k=3, contrast=0.9)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_the_search_is_its_definition_alone_and_in_a_batch(name: str, choice: ContrastiveSearch) -> None:
    made, config = model(name), GenerationConfig(max_tokens=5, strategy=choice)
    wanted = [plainly(made, prompt, source, choice, 5) for prompt, source in zip(PROMPTS, SOURCES, strict=True)]
    assert write(made, [0, 1, 2], config) == wanted
    assert [write(made, [row], config)[0] for row in range(3)] == wanted


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_the_search_is_its_definition_for_every_model(name: str) -> None:
    made, choice = model(name), ContrastiveSearch(top_k=3, contrast=0.7)
    wanted = [plainly(made, prompt, source, choice, 2) for prompt, source in zip(PROMPTS, SOURCES, strict=True)]
    assert write(made, [0, 1, 2], GenerationConfig(max_tokens=2, strategy=choice)) == wanted


def test_no_contrast_is_greedy_and_contrast_changes_something() -> None:
    made = model("preset=first")
    greedy = write(made, [0, 1, 2], GenerationConfig(max_tokens=6))
    assert write(made, [0, 1, 2], GenerationConfig(max_tokens=6, strategy=ContrastiveSearch(contrast=0.0))) == greedy
    assert write(made, [0, 1, 2], GenerationConfig(max_tokens=6, strategy=ContrastiveSearch(contrast=1.0))) != greedy


def test_rows_end_at_a_stop_each_on_its_own() -> None:
    made, config = model("preset=first"), GenerationConfig(max_tokens=6, strategy=ContrastiveSearch())
    free = write(made, [0, 1, 2], config)
    stop = free[1][1]
    found = write(made, [0, 1, 2], dataclasses.replace(config, stop=(stop,)))
    assert found == [new[: new.index(stop) + 1] if stop in new else new for new in free]


def test_what_is_banned_is_no_candidate() -> None:
    made = model("preset=first")
    free = write(made, [0], GenerationConfig(max_tokens=6, strategy=ContrastiveSearch()))[0]
    banned = PenaltyConfig(bias=tuple((id, float("-inf")) for id in range(made.vocab) if id != 4))
    assert set(free) != {4}
    assert write(made, [0], GenerationConfig(max_tokens=4, strategy=ContrastiveSearch(), penalties=banned)) == [[4] * 4]


def test_learned_positions_end_a_token_sooner_for_every_candidate_is_read() -> None:
    made, config = model("preset=gpt2"), GenerationConfig(max_tokens=2 * CONTEXT, strategy=ContrastiveSearch(top_k=2))
    (found,) = complete(made, make_requests([[1, 2]]), config)
    assert len(found.ids) == CONTEXT - 2 and found.reason is FinishReason.CONTEXT
    with pytest.raises(UsageError, match=f"prompt: want fewer tokens than the model.s {CONTEXT} positions"):
        complete(made, make_requests([[1] * CONTEXT]), config)
