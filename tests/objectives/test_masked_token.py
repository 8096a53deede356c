"""Masked tokens: how many are hidden and how, keyed by row; the loss; and a run that learns, resumes and re-shards."""

import dataclasses
import math
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from laws.cases import ENCODERS, ids
from reliability.harness import metrics, tiny, trainer_for, write_text

from heddle.core import ConfigError, Purpose, decode, encode, numpy_generator, replace
from heddle.data.rows import Batch, TokenTraits, token_traits
from heddle.models.networks import Encoder
from heddle.models.presets import PresetConfig, build
from heddle.nn.base import Context
from heddle.objectives import MaskedTokenConfig, NextTokenConfig, ObjectiveConfig
from heddle.text.tokenizers import (
    BpeTokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    UnigramTokenizer,
    WordPieceTokenizer,
    WordTokenizer,
    words_of,
)
from heddle.training import RunConfig

VOCAB, MASK, SEED = 23, 24, 5  # the text's ids are below 23; 23 is the end, 24 the mask
OBJECTIVE = MaskedTokenConfig(mask=MASK, vocab=VOCAB)


def batch(rows: int = 4, length: int = 40, first: int = 0, real: int | None = None) -> Batch:
    tokens = ids(rows, length + 1)
    weights = (torch.arange(length) < (length if real is None else real)).float().expand(rows, -1).contiguous()
    return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), weights, torch.arange(first, first + rows))


def encoder() -> Encoder:
    model = build("distilbert-masked", **ENCODERS["distilbert"], vocab=VOCAB + 2, context=40)
    assert isinstance(model, Encoder)
    return model.double()


# --- hiding -----------------------------------------------------------------------------------------------------------


def test_hidden_tokens_are_an_exact_share_and_targets_stand_in_their_own_places() -> None:
    here = batch(length=40)
    made = OBJECTIVE.prepare(here, SEED)
    assert made.weights.sum(1).tolist() == [6.0] * 4  # 15 % of 40
    assert torch.equal(made.targets, here.inputs)
    assert torch.equal(made.inputs[made.weights == 0], here.inputs[made.weights == 0])
    assert made.tokens == 24
    assert OBJECTIVE.prepare(batch(length=3), SEED).weights.sum(1).tolist() == [1.0] * 4, "one at least"


def test_of_the_hidden_most_become_the_mask_some_any_token_and_the_rest_stay() -> None:
    here = batch(rows=300, length=200)
    made = OBJECTIVE.prepare(here, SEED)
    hidden = made.weights > 0
    was, now = here.inputs[hidden], made.inputs[hidden]
    share = {"mask": (now == MASK).float().mean().item(), "stay": (now == was).float().mean().item()}
    # a token drawn at random is the same one once in a vocabulary
    assert share == pytest.approx({"mask": 0.8, "stay": 0.1 + 0.1 / VOCAB}, abs=0.012)
    assert int(now[now != MASK].max()) < VOCAB
    places = hidden.float().mean(0)
    assert places.std() < 0.03, "all places are hidden alike"


def test_padding_and_control_tokens_are_never_hidden() -> None:
    here = batch(rows=50, length=40, real=10)
    here.inputs[:, ::2] = VOCAB  # the end token
    made = OBJECTIVE.prepare(here, SEED)
    hidden = made.weights > 0
    assert not hidden[:, 10:].any() and not hidden[:, ::2].any()
    assert made.weights.sum(1).tolist() == [1.0] * 50  # 15 % of five
    assert made.documents is not None and torch.equal(made.documents == 1, torch.arange(40).expand(50, -1) >= 10)
    here.inputs[:] = VOCAB
    assert OBJECTIVE.prepare(here, SEED).tokens == 0, "nothing can be hidden"


def test_control_tokens_are_spared_wherever_their_ids_lie() -> None:
    spared = (0, 7, VOCAB - 1)
    here = batch(rows=300, length=200)
    made = dataclasses.replace(OBJECTIVE, mask=7, never_masked=spared).prepare(here, SEED)
    hidden, among = made.weights > 0, torch.tensor(spared)
    assert not torch.isin(here.inputs[hidden], among).any(), "one was hidden"
    drawn = made.inputs[hidden & (made.inputs != here.inputs) & (made.inputs != 7)]
    assert set(drawn.tolist()) == set(range(VOCAB)) - set(spared)


def test_a_row_is_hidden_by_its_number_whatever_stands_beside_it() -> None:
    whole = OBJECTIVE.prepare(batch(rows=4), SEED)
    tail = dataclasses.replace(batch(rows=4).slice(2, 4))
    assert torch.equal(OBJECTIVE.prepare(tail, SEED).inputs, whole.inputs[2:])
    later = dataclasses.replace(batch(rows=4), rows=torch.arange(100, 104))
    assert not torch.equal(OBJECTIVE.prepare(later, SEED).weights, whole.weights), "each epoch hides others"
    assert not torch.equal(OBJECTIVE.prepare(batch(rows=4), SEED + 1).weights, whole.weights)


def hidden_alone(tokens: np.ndarray, may: np.ndarray, unit: np.ndarray, number: int, never: list[int]) -> np.ndarray:
    """Hide tokens of one row, one word after the other: the reference."""
    draw, size = numpy_generator(SEED, Purpose.DATA, "mask", number), len(tokens)
    order, fate, drawn = draw.random(size), draw.random(size), draw.integers(VOCAB - len(never), size=size)
    allowed = [token for token in range(VOCAB) if token not in never]
    budget = min(int(may.sum()), max(1, round(0.15 * int(may.sum()))))
    shown = tokens.copy()
    for word in sorted({int(word) for word in unit[may]}, key=lambda word: order[word]):
        places = np.flatnonzero((unit == word) & may)
        if len(places) <= budget:
            budget -= len(places)
            if fate[word] < 0.8:
                shown[places] = MASK
            elif fate[word] < 0.9:
                shown[places] = np.array(allowed)[drawn[places]]
    return shown


@pytest.mark.parametrize("unit", ["token", "word"])
def test_rows_hidden_together_are_those_hidden_one_by_one(unit: Literal["token", "word"]) -> None:
    here, never = batch(rows=40, length=37, first=900, real=33), [0, 7, VOCAB - 1]
    traits = TokenTraits(np.arange(VOCAB) < 10, np.arange(VOCAB) == 4, np.zeros(VOCAB, bool))
    config = dataclasses.replace(OBJECTIVE, unit=unit, never_masked=tuple(never))
    made = config.prepare(here, SEED, traits)
    for row, number in enumerate(here.rows.tolist()):
        tokens = here.inputs[row].numpy()
        may = (here.weights[row].numpy() > 0) & ~np.isin(tokens, never)
        starts = traits.word_starts(tokens) | np.concatenate(([True], may[1:] != may[:-1]))
        units = np.arange(37) if unit == "token" else np.cumsum(starts) - 1
        assert made.inputs[row].tolist() == hidden_alone(tokens, may, units, number, never).tolist()


# --- static masks and whole words -------------------------------------------------------------------------------------


def test_static_masks_belong_to_the_text() -> None:
    static, here = dataclasses.replace(OBJECTIVE, static=3), batch(rows=1)
    masks = {
        tuple(static.prepare(dataclasses.replace(here, rows=torch.tensor([number])), SEED).weights[0].tolist())
        for number in range(30)
    }
    assert len(masks) == 3, "as many as there may be, however often a row comes"
    other = dataclasses.replace(here, inputs=here.inputs.roll(1, 1))
    assert not torch.equal(static.prepare(other, SEED).weights, static.prepare(here, SEED).weights)


def test_rows_that_are_not_cut_anew_come_again(tmp_path: Path) -> None:
    config = run(tmp_path, training__steps=1)
    with pytest.raises(ConfigError, match=r"rows\.recut: want false, because static masks"):
        trainer_for(replace(config, objective=MaskedTokenConfig(static=10)), tmp_path / "refused")
    rows = replace(config.rows, recut=False)
    trainer = trainer_for(replace(config, rows=rows, objective=MaskedTokenConfig(static=10)), tmp_path / "run")
    plan = trainer.loader.plan
    epochs = [
        [plan.row(epoch * plan.rows_per_epoch + row).tokens.tobytes() for row in range(plan.rows_per_epoch)]
        for epoch in range(2)
    ]
    assert epochs[0] != epochs[1] and sorted(epochs[0]) == sorted(epochs[1])


TOKENIZERS = {
    "byte": ByteTokenizer(),
    "character": CharacterTokenizer(),
    "word": WordTokenizer(),
    "bpe": BpeTokenizer(),
    "wordpiece": WordPieceTokenizer(vocab=60),
    "unigram": UnigramTokenizer(vocab=272),
}
WORDS = "the cat sat on the mat while the dogs were sleeping under trees and nobody noticed anything strange"


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_words_begin_where_the_text_says(kind: str) -> None:
    tokenizer = TOKENIZERS[kind].train([WORDS, "A line.\nAnother line"])
    ids_of_text = np.array(tokenizer.encode(WORDS))
    starts = token_traits(tokenizer).word_starts(ids_of_text)
    assert np.flatnonzero(starts).tolist() == [word.first for word in words_of(WORDS, tokenizer.spans(WORDS))]


def test_a_mark_at_the_end_of_a_word_begins_the_next() -> None:
    traits = TokenTraits(np.zeros(4, bool), np.array([False, True, False, True]), np.zeros(4, bool))
    assert traits.word_starts(np.array([0, 1, 2, 3, 3])).tolist() == [True, False, True, False, True]


def test_the_pieces_of_a_word_share_their_fate() -> None:
    words, here = dataclasses.replace(OBJECTIVE, unit="word"), batch(rows=100, length=200)
    traits = TokenTraits(np.arange(VOCAB) < 10, np.zeros(VOCAB, bool), np.zeros(VOCAB, bool))
    made = words.prepare(here, SEED, traits)
    for row in range(100):
        word = np.cumsum(traits.word_starts(here.inputs[row].numpy()))
        for number in np.unique(word):
            inside = torch.from_numpy(word == number)
            assert len(made.weights[row][inside].unique()) == 1, "hidden as a whole or not at all"
            assert len((made.inputs[row][inside] == MASK).unique()) == 1, "masked as a whole or not at all"
    count = made.weights.sum(1)
    assert count.max() == 30 and count.mean() > 29.5, "the same budget, but for what fits no word"
    with pytest.raises(ConfigError, match=r"objective\.unit: want token, where no tokenizer"):
        words.prepare(here, SEED)


@pytest.mark.parametrize("unit", ["token", "word"])
def test_proportions_over_a_million_tokens(unit: Literal["token", "word"]) -> None:
    traits = TokenTraits(np.arange(VOCAB) < 16, np.zeros(VOCAB, bool), np.zeros(VOCAB, bool))
    here = batch(rows=2000, length=500)
    made = dataclasses.replace(OBJECTIVE, unit=unit).prepare(here, SEED, traits)
    hidden = made.weights > 0
    assert hidden.sum().item() == pytest.approx(150_000, abs=0 if unit == "token" else 100)
    was, now = here.inputs[hidden], made.inputs[hidden]
    drawn = len(was)  # of words, pieces are not drawn alone: a word of three counts as one draw
    larger = 1.0 if unit == "token" else 3.0
    for share, found in (
        (0.8, (now == MASK).float().mean().item()),
        (0.1 + 0.1 / VOCAB, (now == was).float().mean().item()),
        (0.1 * (1 - 1 / VOCAB), ((now != was) & (now != MASK)).float().mean().item()),
    ):
        assert abs(found - share) < 4 * math.sqrt(larger * share * (1 - share) / drawn)


# --- the loss ---------------------------------------------------------------------------------------------------------


def test_the_loss_is_the_cross_entropy_of_the_hidden_tokens_alone() -> None:
    model, made = encoder(), OBJECTIVE.prepare(batch(real=30), SEED)
    scores = model.scores("masked_token", made.inputs, Context(documents=made.documents))
    each = torch.nn.functional.cross_entropy(scores.transpose(1, 2), made.targets, reduction="none")
    torch.testing.assert_close(OBJECTIVE(model, made).total, (each * made.weights).sum())


def test_only_hidden_tokens_meet_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    model, met = encoder(), []
    head = model.output("masked_token").head
    nll = head.nll
    monkeypatch.setattr(head, "nll", lambda x, *rest: met.append(x.shape[:2]) or nll(x, *rest))
    OBJECTIVE(model, OBJECTIVE.prepare(batch(), SEED))
    assert met == [(4, 6)]


def test_knowing_nothing_costs_log_vocab_and_padding_never_counts() -> None:
    model = encoder()
    with torch.no_grad():
        for weight in model.outputs.parameters():
            weight.zero_()
    made = OBJECTIVE.prepare(batch(real=13), SEED)
    total = OBJECTIVE(model, made).total.item()
    assert total == pytest.approx(made.tokens * math.log(VOCAB + 2), rel=1e-12)
    model = encoder()
    other = dataclasses.replace(batch(real=13), inputs=batch(real=13).inputs.where(torch.arange(40) < 13, 7))
    assert torch.equal(OBJECTIVE(model, made).total, OBJECTIVE(model, OBJECTIVE.prepare(other, SEED)).total)


def test_two_halves_cost_what_the_whole_costs() -> None:
    model, made = encoder(), OBJECTIVE.prepare(batch(), SEED)
    halves = sum(OBJECTIVE(model, made.slice(i, i + 2)).total for i in (0, 2))
    torch.testing.assert_close(halves, OBJECTIVE(model, made).total)


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_what_cannot_be_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="mask_rate: want above 0"):
        MaskedTokenConfig(mask_rate=0.0)
    with pytest.raises(ConfigError, match="mask_share: want 0 or more, with random at most 1"):
        MaskedTokenConfig(mask_share=0.95, random=0.1)
    with pytest.raises(ConfigError, match=r"objective\.mask: not set"):
        MaskedTokenConfig().prepare(batch(), SEED)
    with pytest.raises(ConfigError, match=r"tokenizer.special: want <\|mask\|> among them"):
        MaskedTokenConfig().resolve({"<|end|>": 3}, 4)
    for wrong, line in (
        ({"mask": 4}, "objective.mask: want an id of the tokenizer, 0 to 3"),
        ({"mask": 3, "vocab": 5}, "objective.vocab: want at most the tokenizer's 4"),
        ({"mask": 3, "vocab": 2, "never_masked": (0, 1)}, "objective.vocab: .* and one that may be masked"),
    ):
        with pytest.raises(ConfigError, match=line):
            MaskedTokenConfig(**wrong).resolve({}, 4)
    with pytest.raises(ConfigError, match="never_masked: want at least 0, got -1"):
        MaskedTokenConfig(never_masked=(3, -1))
    with pytest.raises(ConfigError, match="made by `prepare`"):
        OBJECTIVE(encoder(), batch())
    model = build("gpt2", layers=1, width=16, heads=2, vocab=VOCAB, context=8)
    with pytest.raises(ConfigError, match="an encoder for masked_token"):
        OBJECTIVE(model, OBJECTIVE.prepare(batch(), SEED))
    bare = build("distilbert", **ENCODERS["distilbert"], vocab=VOCAB, context=8)
    with pytest.raises(ConfigError, match=r"model\.outputs: want masked_token among them, as in the preset"):
        OBJECTIVE(bare, OBJECTIVE.prepare(batch(), SEED))
    with pytest.raises(ConfigError, match="a language model for next_token"):
        NextTokenConfig()(encoder(), batch())


def test_the_tokenizer_settles_what_was_left_open() -> None:
    settled = MaskedTokenConfig().resolve({"<|end|>": 30, "<|mask|>": 31}, 32)
    assert (settled.mask, settled.vocab, settled.never_masked) == (31, 32, (30, 31))
    said = MaskedTokenConfig(mask=3, vocab=9, never_masked=())
    assert said.resolve({"<|end|>": 30}, 32) == said
    assert decode(ObjectiveConfig, encode(settled)) == settled


# --- a run ------------------------------------------------------------------------------------------------------------


def run(tmp_path: Path, **changes: object) -> RunConfig:
    config = tiny(write_text(tmp_path / "text.txt"), every__save=4, **changes)
    model = PresetConfig(name="bert-base-masked", layers=1, width=32, heads=2, dropout=0.1)
    return replace(config, model=model, objective=MaskedTokenConfig())


def test_an_encoder_learns_hidden_bytes_of_plain_text(tmp_path: Path) -> None:
    trainer = trainer_for(run(tmp_path, training__steps=80, every__validate=40), tmp_path / "run")
    assert trainer.objective == MaskedTokenConfig(mask=257, vocab=258, never_masked=(256, 257))
    trainer.fit()
    lines = metrics(tmp_path / "run")
    losses = [line["loss"] for line in lines if "loss" in line]
    held_out = [line["validation_loss"] for line in lines if "validation_loss" in line]
    assert losses[0] == pytest.approx(math.log(258), abs=0.5), "nats per hidden token"
    assert sum(losses[-10:]) / 10 < 0.65 * losses[0]
    assert held_out[-1] < held_out[0]
    assert not any("bits_per_byte" in line for line in lines), "a loss of hidden tokens is no code length"


def test_a_resumed_run_ends_in_the_same_bits(tmp_path: Path) -> None:
    whole = trainer_for(run(tmp_path, training__steps=8), tmp_path / "whole" / "run")
    whole.fit()
    cut = trainer_for(run(tmp_path, training__steps=4), tmp_path / "cut" / "run")
    cut.fit()
    again = trainer_for(run(tmp_path, training__steps=8), tmp_path / "cut" / "run")
    assert again.step == 4
    again.fit()
    for name, weight in whole.model.weights().items():
        assert torch.equal(weight, again.model.weights()[name]), name


def test_a_tokenizer_without_a_mask_is_named(tmp_path: Path) -> None:
    trainer_for(tiny(write_text(tmp_path / "text.txt")), tmp_path / "run")  # leaves a tokenizer without one
    with pytest.raises(ConfigError, match=r"tokenizer\.special"):
        trainer_for(run(tmp_path), tmp_path / "run")
