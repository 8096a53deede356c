"""Penalties are those of the field, over what each row holds, and never depend on the other rows."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from cli.runs import save_run
from laws.cases import of_presets
from torch import Tensor

import heddle
from heddle.core import ConfigError, UsageError, replace
from heddle.decoding.generation import GenerationConfig, MultinomialSampling, complete, generate, process_logits
from heddle.decoding.runtime import FinishReason, make_requests
from heddle.decoding.sampling import History, PenaltyConfig
from heddle.decoding.sampling.penalties import apply_penalties
from heddle.models.networks import AutoregressiveModel

VOCAB = 12
PROMPTS = [[3, 3, 5], [1], [0, 7, 2, 7, 7]]
NEW = [[5, 5, 1], [2, 2, 2], [9, 0, 9]]


def scores(seed: int = 0) -> Tensor:
    return 3 * torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def history() -> History:
    message = History.from_prompts(PROMPTS, torch.device("cpu"))
    for ids in zip(*NEW, strict=True):
        message = message.append(torch.tensor(ids))
    return message


def plainly(row: Tensor, penalties: PenaltyConfig, prompt: list[int], new: list[int]) -> Tensor:
    """Apply the definitions id by id."""
    found, bias, counts = row.clone(), dict(penalties.bias), Counter(new)
    for id in range(len(row)):
        value = float(row[id]) + bias.get(id, 0.0)
        if id in prompt or id in new:
            value = value * penalties.repetition if value < 0 else value / penalties.repetition
        found[id] = value - penalties.presence * (counts[id] > 0) - penalties.frequency * counts[id]
    return found


@pytest.mark.parametrize(
    "penalties",
    [
        PenaltyConfig(),
        PenaltyConfig(repetition=1.3),
        PenaltyConfig(repetition=0.7),
        PenaltyConfig(presence=0.8),
        PenaltyConfig(frequency=0.5),
        PenaltyConfig(presence=-0.4, frequency=0.3),
        PenaltyConfig(bias=((2, 1.5), (7, -math.inf))),
        PenaltyConfig(repetition=1.5, presence=0.2, frequency=0.1, bias=((5, -2.0), (0, 4.0))),
    ],
    ids=str,
)
def test_penalties_are_their_definitions(penalties: PenaltyConfig) -> None:
    found = apply_penalties(scores(), penalties, history())
    wanted = [plainly(row, penalties, *both) for row, *both in zip(scores(), PROMPTS, NEW, strict=True)]
    assert torch.allclose(found, torch.stack(wanted))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_small_penalties_count_in_half_precision_too(dtype: torch.dtype) -> None:
    level = torch.full((1, 4), 16.0, dtype=dtype)
    liked = apply_penalties(level, PenaltyConfig(bias=((2, 1e-3),)), None)
    assert liked.argmax(-1).item() == 2
    message = History(
        torch.tensor([[0]]), torch.tensor([[1] * 600 + [3] * 599])
    )  # more than either can count one by one
    often = apply_penalties(level, PenaltyConfig(frequency=0.5), message)
    assert often[0].tolist() == [16.0, 16.0 - 300.0, 16.0, 16.0 - 299.5]


def test_repetition_and_bias_are_those_of_hugging_face() -> None:
    hf = pytest.importorskip("transformers")
    prompts = [[1, 2, 2, 4], [5, 5, 5, 0], [7, 3, 11, 9]]
    ids = torch.tensor(prompts)
    message = History.from_prompts(prompts, ids.device)
    for by in (0.8, 1.1, 2.0):
        wanted = hf.RepetitionPenaltyLogitsProcessor(by)(ids, scores())
        assert torch.allclose(apply_penalties(scores(), PenaltyConfig(repetition=by), message), wanted)
    wanted = hf.SequenceBiasLogitsProcessor([[[3], -1.5], [[8], 2.0]])(ids, scores().float())
    assert torch.allclose(apply_penalties(scores().float(), PenaltyConfig(bias=((3, -1.5), (8, 2.0))), message), wanted)


def test_the_history_follows_the_rows() -> None:
    penalties, rows = PenaltyConfig(repetition=1.4, frequency=0.3), torch.tensor([2, 0, 2])
    assert torch.equal(
        apply_penalties(scores()[rows], penalties, history().select(rows)),
        apply_penalties(scores(), penalties, history())[rows],
    )


def test_a_bias_for_an_id_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match=f"bias: want ids from 0 to {VOCAB - 1}, got {VOCAB}"):
        apply_penalties(scores(), PenaltyConfig(bias=((VOCAB, 1.0),)), None)


def test_ids_beyond_the_vocabulary_and_early_stops_are_left_out() -> None:
    config = GenerationConfig(stop=(1, 4), vocab=10, min_tokens=2)
    for new, dropped in ((0, {1, 4, 10, 11}), (1, {1, 4, 10, 11}), (2, {10, 11})):
        found = process_logits(scores(), config, new)
        assert set(torch.nonzero(found[0] == -math.inf).flatten().tolist()) == dropped
        kept = [id for id in range(VOCAB) if id not in dropped]
        assert torch.equal(found[:, kept], scores()[:, kept])


# --- in generation ----------------------------------------------------------------------------------------------------

CONFIGS = {case.name.removeprefix("preset="): case.config for case in of_presets()}


def model(name: str) -> AutoregressiveModel:
    made = CONFIGS[name].build(3).double().eval()
    assert isinstance(made, AutoregressiveModel)
    return made


@pytest.mark.parametrize("name", ["first", "lstm_lm"])
@pytest.mark.parametrize(
    "choice", [GenerationConfig().strategy, MultinomialSampling(temperature=1.5)], ids=["greedy", "draw"]
)
def test_a_row_alone_is_the_row_beside_others_and_read_anew(name: str, choice: object) -> None:
    penalties = PenaltyConfig(repetition=1.7, presence=0.3, frequency=0.4, bias=((2, 0.5),))
    config = replace(GenerationConfig(max_tokens=8, penalties=penalties, stop=(6,)), strategy=choice)
    prompts, made = [[1], [2, 3, 4], [5, 5]], model(name)
    together = generate(made, prompts, config)
    assert together == [generate(made, [prompt], config)[0] for prompt in prompts]
    for prompt, new in zip(prompts, together, strict=True):
        if isinstance(choice, MultinomialSampling):
            continue
        for at in range(len(new)):
            row = made.logits(torch.tensor([prompt + new[:at]]))[0, -1].detach()
            assert new[at] == int(plainly(row, penalties, prompt, new[:at]).argmax())


def test_a_great_penalty_keeps_rows_from_repeating() -> None:
    free = generate(model("first"), [[1]], GenerationConfig(max_tokens=7))[0]
    found = generate(model("first"), [[1]], GenerationConfig(max_tokens=7, penalties=PenaltyConfig(presence=1e6)))[0]
    assert len(set(found)) == 7 > len(set(free))


def test_what_is_banned_is_never_said_and_a_ban_of_all_ends_the_row() -> None:
    made = model("first")
    free = generate(made, [[1]], GenerationConfig(max_tokens=5))[0]
    banned = PenaltyConfig(bias=tuple((id, -math.inf) for id in set(free)))
    assert not set(free) & set(generate(made, [[1]], GenerationConfig(max_tokens=5, penalties=banned))[0])
    every = PenaltyConfig(bias=tuple((id, -math.inf) for id in range(made.vocab)))
    for choice in (GenerationConfig().strategy, MultinomialSampling()):
        (found,) = complete(made, make_requests([[1]]), GenerationConfig(strategy=choice, penalties=every))
        assert found.ids == [] and found.reason is FinishReason.STUCK


def test_a_stop_waits_for_the_least_tokens() -> None:
    made = model("first")
    stop = generate(made, [[1]], GenerationConfig(max_tokens=1))[0][0]
    assert generate(made, [[1]], GenerationConfig(stop=(stop,))) == [[stop]]
    (found,) = generate(made, [[1]], GenerationConfig(stop=(stop,), min_tokens=4, max_tokens=20))
    assert len(found) > 4 and stop not in found[:4]


@pytest.mark.parametrize("seed", range(3))
def test_greedy_with_penalties_is_that_of_hugging_face(seed: int) -> None:
    pytest.importorskip("transformers")
    from decoding.test_hugging_face_beams import PADDING, pair

    theirs, ours = pair("gpt2", seed)
    prompts, stop = [[5, 9, 3, 30, 7], [12, 4], [8, 8, 21]], (2, 9, 44)
    penalties = PenaltyConfig(repetition=1.4, bias=((7, 1.5), (30, -2.0)))
    found = generate(ours, prompts, GenerationConfig(max_tokens=10, min_tokens=3, stop=stop, penalties=penalties))
    for prompt, new in zip(prompts, found, strict=True):
        wanted = theirs.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt)),
            max_new_tokens=10,
            min_new_tokens=3,
            eos_token_id=list(stop),
            pad_token_id=PADDING,
            do_sample=False,
            repetition_penalty=1.4,
            sequence_bias=[[[7], 1.5], [[30], -2.0]],
        )
        assert new == wanted[0, len(prompt) :].tolist()


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_no_ngram_of_prompt_and_text_comes_twice(size: int) -> None:
    draw = torch.Generator().manual_seed(size)
    prompts = [torch.randint(4, (length,), generator=draw).tolist() for length in (1, 2, 5, 9, 9)]
    found = History.from_prompts(prompts, torch.device("cpu"))
    for new in range(12):
        logits = apply_penalties(torch.zeros(5, 4), PenaltyConfig(no_repeat_ngram=size), found)
        for row, prompt in enumerate(prompts):
            ids = prompt + found.new[row].tolist()
            known = {tuple(ids[i : i + size]) for i in range(len(ids) - size + 1)}
            begun = ids[len(ids) - size + 1 :] if size > 1 else []
            banned = [len(begun) == size - 1 and (*begun, token) in known for token in range(4)]
            assert (logits[row] == -torch.inf).tolist() == banned, (new, row)
        found = found.append(torch.randint(4, (5,), generator=draw))
        order = torch.randperm(5, generator=draw)
        found, prompts = found.select(order), [prompts[i] for i in order.tolist()]


def test_a_size_below_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="no_repeat_ngram: want at least 0, got -1"):
        PenaltyConfig(no_repeat_ngram=-1)


@pytest.mark.parametrize("more", [{"forced_end": True}, {"no_repeat_ngram": 2}])
def test_drafts_keep_to_forced_ends_and_ngrams(more: dict[str, Any], tmp_path: Path) -> None:
    save_run(tmp_path / "run")
    lm, texts = heddle.load(tmp_path / "run", device="cpu"), ["the cat sat on the cat sat on", "aaab aaab"]
    plain = lm.generate(texts, max_tokens=14, **more)
    assert lm.generate(texts, max_tokens=14, draft=heddle.LookupDraft(), **more) == plain
    ids = lm.generate_ids([lm.tokenizer.encode(text) for text in texts], max_tokens=14, **more)
    assert not more.get("forced_end") or all(row[-1] == lm.tokenizer.end for row in ids)
