"""BART's noises: what each does to words, sentences and documents, by properties; their composition; a run."""

from pathlib import Path

import numpy as np
import pytest
import torch
from laws.objective_cases import CASES, END, MASK, TRAITS, encoder, encoder_decoder, plain
from reliability.harness import metrics, tiny, trainer_for, write_text

from heddle.core import ConfigError, decode, encode, replace
from heddle.data.rows import PackedRows, TokenTraits, token_traits
from heddle.models.presets import PresetConfig
from heddle.objectives import (
    DenoisingConfig,
    DocumentRotationConfig,
    NoiseConfig,
    ObjectiveConfig,
    SentencePermutationConfig,
    TextInfillingConfig,
    TokenDeletionConfig,
    TokenMaskingConfig,
    TokenView,
)
from heddle.text.tokenizers import BpeTokenizer, ByteTokenizer, WordPieceTokenizer, WordTokenizer
from heddle.training import RunConfig
from heddle.training.checks import check_fit

VIEW = TokenView(MASK, np.array([END, MASK]), TRAITS)
NOISES = (
    TokenMaskingConfig(),
    TokenDeletionConfig(),
    TextInfillingConfig(),
    SentencePermutationConfig(),
    DocumentRotationConfig(),
)


def texts(count: int = 200, length: int = 60) -> list[np.ndarray]:
    """Return rows of one to three documents, some of them empty or of one word."""
    found = []
    for seed in range(count):
        draw = np.random.default_rng(seed)
        row = draw.integers(0, 23, size=draw.integers(1, length))
        row[draw.random(len(row)) < 0.04] = END
        found.append(row)
    return found


def applied(noise: NoiseConfig, tokens: np.ndarray, seed: int = 0) -> np.ndarray:
    return noise.apply(tokens.copy(), VIEW, np.random.default_rng(seed))


def documents(tokens: np.ndarray) -> list[list[int]]:
    return [part[part != END].tolist() for part in np.split(tokens, np.flatnonzero(tokens == END))]


@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: noise.kind)
def test_no_noise_makes_a_row_longer_or_touches_a_control_token(noise: NoiseConfig) -> None:
    for seed, tokens in enumerate(texts()):
        before = tokens.copy()
        made = noise.apply(tokens, VIEW, np.random.default_rng(seed))
        assert np.array_equal(tokens, before), "the row itself is changed"
        assert len(made) <= len(tokens) and (made == END).sum() == (tokens == END).sum()
        assert set(made.tolist()) <= {*tokens.tolist(), MASK}


def test_masking_counts_words_and_masks_all_of_a_word() -> None:
    for seed, tokens in enumerate(texts()):
        made, words = applied(TokenMaskingConfig(share=0.3), tokens, seed), VIEW.words(tokens)
        count = words.max() + 1
        masked = [bool((made[words == word] == MASK).all()) for word in range(count)]
        assert sum(masked) == int(np.ceil(0.3 * count))
        for word in range(count):
            assert masked[word] or np.array_equal(made[words == word], tokens[words == word])


def test_deletion_leaves_out_whole_words() -> None:
    for seed, tokens in enumerate(texts()):
        made = applied(TokenDeletionConfig(share=0.3), tokens, seed)
        masked = applied(TokenMaskingConfig(share=0.3), tokens, seed)  # the same draws
        assert np.array_equal(made, tokens[masked != MASK]) and MASK not in made


def test_infilling_hides_an_exact_share_of_words_in_spans_of_one_mask() -> None:
    spans: list[int] = []
    insertions = 0
    ordinary = TokenTraits(np.ones(2100, bool), np.zeros(2100, bool), np.zeros(2100, bool))
    for seed in range(200):
        view = TokenView(2050, np.array([2050]), ordinary)
        tokens = np.arange(300)
        made = TextInfillingConfig().apply(tokens, view, np.random.default_rng(seed))
        left = made[made != 2050]
        assert np.array_equal(left, np.sort(left)), "what is left keeps its order"
        assert len(tokens) - len(left) == 90, "30 % of the words"
        gaps = np.diff(np.concatenate(([-1], left, [300]))) - 1  # words that are missing before each that is left
        masks = np.diff(np.concatenate(([-1], np.flatnonzero(made != 2050), [len(made)]))) - 1
        assert (masks[gaps > 0] > 0).all(), "each gap has a mask"
        insertions += int((masks[gaps == 0]).sum())
        alone = (masks == 1) & (gaps > 0)
        spans += gaps[alone].tolist()
    assert insertions > 100, "spans of no word insert masks"
    assert 2.9 < np.mean(spans) < 3.4, "Poisson with mean 3, without those of length 0: 3.16"


def test_infilling_of_pieces_counts_word_starts() -> None:
    for seed, tokens in enumerate(texts()):
        made, words = applied(TextInfillingConfig(), tokens, seed), VIEW.words(tokens)
        count = int(words.max()) + 1
        kept = VIEW.words(made[made != MASK])
        gone = (tokens != END).sum() - (made[made != MASK] != END).sum()
        assert gone >= int(np.ceil(0.3 * count)) or count == 0, "a word has one token at least"
        assert kept.max(initial=-1) + 1 <= count


def test_permutation_keeps_sentences_whole_and_documents_apart() -> None:
    moved = 0
    for seed, tokens in enumerate(texts()):
        made = applied(SentencePermutationConfig(), tokens, seed)
        for before, after in zip(documents(tokens), documents(made), strict=True):
            assert sorted(before) == sorted(after)
            moved += before != after
            whole = [s.tolist() for s in np.split(np.array(before), np.flatnonzero(np.array(before) >= 20) + 1)]
            rest = after
            while rest:  # what comes is always a whole sentence
                one = next(sentence for sentence in whole if sentence and rest[: len(sentence)] == sentence)
                whole.remove(one)
                rest = rest[len(one) :]
    assert moved > 50


def test_rotation_turns_a_document() -> None:
    turned = 0
    for seed, tokens in enumerate(texts()):
        made = applied(DocumentRotationConfig(), tokens, seed)
        for before, after in zip(documents(tokens), documents(made), strict=True):
            turns = [before[cut:] + before[:cut] for cut in range(max(1, len(before)))]
            assert after in turns
            turned += after != before
    assert turned > 100
    kept = [
        np.array_equal(applied(DocumentRotationConfig(share=0.5), np.arange(20), s), np.arange(20)) for s in range(200)
    ]
    assert 70 < sum(kept) < 140, "about half are rotated, and one of those in twenty by nothing"


@pytest.mark.parametrize("kind", [ByteTokenizer(), WordTokenizer(), BpeTokenizer(), WordPieceTokenizer(vocab=40)])
def test_sentences_end_where_the_tokenizer_says(kind: object) -> None:
    text = "The cat sat. Did it run? It did! Then a line\nwas read."
    tokenizer = kind.train([text, text])  # type: ignore[attr-defined]
    ids = tokenizer.encode(text)
    ends = token_traits(tokenizer).ends_sentence[ids]
    lines = not isinstance(kind, WordPieceTokenizer)  # which drops line ends
    assert ends.sum() == 4 + lines and ends[-1]


def test_noises_are_composed_in_order() -> None:
    case = CASES["denoising"]
    made = case.prepare(plain(), 3)
    assert made.source is not None and made.source.shape == (4, 41) and made.targets.shape == (4, 41)
    assert made.source_lengths is not None and (made.source_lengths <= 41).all()
    for row, length in enumerate(made.source_lengths.tolist()):
        assert (made.source[row, length - 1 :] == END).all() and (made.source[row, : length - 1] != END).all()
    opened = replace(case, objective=replace(case.objective, source_before=(3,), target_before=(4,))).prepare(
        plain(), 3
    )
    assert (
        opened.source is not None
        and (opened.source[:, 0] == 3).all()
        and torch.equal(opened.source[:, 1:], made.source)
    )
    assert opened.inputs[:, :2].tolist() == [[END, 4]] * 4 and (opened.targets[:, 0] == 4).all()


def test_what_cannot_be_is_refused_in_one_line() -> None:
    for wrong, line in (
        ({"noises": ()}, "noises: want at least one noise"),
        ({"noises": ({"kind": "text_infilling", "mean_span": 0},)}, "noises.0.mean_span: want above 0"),
        ({"noises": ({"kind": "token_masking", "share": 0},)}, "noises.0.share: want above 0 and at most 1"),
        ({"noises": ("text_infiling",)}, "text_infilling"),
    ):
        with pytest.raises(ConfigError, match=line):
            decode(ObjectiveConfig, {"kind": "denoising", **wrong})
    with pytest.raises(ConfigError, match=r"tokenizer\.special: want <\|mask\|>"):
        DenoisingConfig().resolve({"end": 0, "decoder_start": 0}, 9)
    with pytest.raises(ConfigError, match="facts about the tokenizer"):
        DenoisingConfig().prepare(plain(), 0)
    with pytest.raises(ConfigError, match="an encoder-decoder for denoising"):
        CASES["denoising"].loss(encoder(), CASES["denoising"].prepare(plain(), 0))
    with pytest.raises(ConfigError, match="made by `prepare`"):
        CASES["denoising"].loss(encoder_decoder(), plain())
    config = RunConfig(model=PresetConfig(name="bart-base"), objective=DenoisingConfig(), rows=PackedRows())
    with pytest.raises(ConfigError, match=r"rows\.boundaries: want stream"):
        check_fit(config)


def test_a_run_learns_and_resumes_in_the_same_bits(tmp_path: Path) -> None:
    config = tiny(write_text(tmp_path / "text.txt"), every__save=4, rows__boundaries="stream", every__validate=4)
    model = PresetConfig(name="bart-base", layers=1, width=32, heads=2, dropout=0.1)
    config = replace(config, model=model, objective=DenoisingConfig())
    whole = trainer_for(replace(config, training=replace(config.training, steps=12)), tmp_path / "whole" / "run")
    assert whole.model.context == 33 and whole.objective.controls == (256, 257)  # type: ignore[attr-defined]
    assert decode(ObjectiveConfig, encode(whole.objective)) == whole.objective
    whole.fit()
    held_out = [line["validation_loss"] for line in metrics(tmp_path / "whole" / "run") if "validation_loss" in line]
    assert held_out[-1] < held_out[0]
    for steps in (4, 12):
        again = trainer_for(replace(config, training=replace(config.training, steps=steps)), tmp_path / "cut" / "run")
        again.fit()
    for name, weight in whole.model.weights().items():
        assert torch.equal(weight, again.model.weights()[name]), name
