"""Span corruption: equal to T5's published algorithm given the same draws; its shapes, ids and refusals; a run."""

from pathlib import Path

import numpy as np
import pytest
import torch
from laws.objective_cases import CASES, encoder_decoder, language_model, plain
from reliability.harness import metrics, tiny, trainer_for, write_text

from heddle.core import ConfigError, decode, encode, replace
from heddle.data.rows import Batch, PackedRows, PairRows, StreamRows
from heddle.data.sources import CorpusConfig, ParallelSource
from heddle.models.presets import PresetConfig
from heddle.objectives import ObjectiveConfig, SequenceConfig, SpanCorruptionConfig
from heddle.objectives.span_corruption import SENTINEL_NAMES, corrupt, corrupted_lengths, noise_counts, random_spans
from heddle.text.tokenizers import ByteTokenizer, PretrainedTokenizer, Tokenizer, WordPieceTokenizer
from heddle.training import RunConfig
from heddle.training.checks import check_fit

OBJECTIVE = CASES["span_corruption"].objective
assert isinstance(OBJECTIVE, SpanCorruptionConfig)


class Scripted:
    """Stands for a generator, and remembers what it drew for a reference to use again."""

    def __init__(self, seed: int) -> None:
        self.draw, self.drawn = np.random.default_rng(seed), []

    def permutation(self, count: int) -> np.ndarray:
        self.drawn.append(self.draw.permutation(count))
        return self.drawn[-1]


def published(length: int, density: float, mean_span: float, shuffles: list[np.ndarray]) -> np.ndarray:
    """The noise mask of Raffel et al. 2020, step by step as the paper's code describes it, in plain Python.

    A shuffle orders the list of `segments - 1` ones and zeros that says where a new segment begins.
    """
    noise = int(np.round(length * density))
    noise = min(max(noise, 1), length - 1)
    spans = max(int(np.round(noise / mean_span)), 1)

    def segmentation(items: int, shuffle: np.ndarray) -> list[int]:
        begins = [False, *(int(number) < spans - 1 for number in shuffle)]
        lengths = [0]
        for number, begin in enumerate(begins):
            if begin and number:
                lengths.append(0)
            lengths[-1] += 1
        assert sum(lengths) == items
        return lengths

    noisy, clean = segmentation(noise, shuffles[0]), segmentation(length - noise, shuffles[1])
    mask: list[bool] = []
    for seen, hidden in zip(clean, noisy, strict=True):
        mask += [False] * seen + [True] * hidden
    return np.array(mask)


@pytest.mark.parametrize(
    ("length", "density", "span"), [(568, 0.15, 3.0), (284, 0.15, 3.0), (97, 0.5, 8.0), (2, 0.15, 3)]
)
def test_the_mask_is_that_of_the_published_algorithm(length: int, density: float, span: float) -> None:
    for seed in range(20):
        draw = Scripted(seed)
        got = random_spans(length, density, span, draw)  # type: ignore[arg-type]
        assert np.array_equal(got, published(length, density, span, draw.drawn))


def test_source_and_target_are_those_of_the_paper() -> None:
    text = np.array([7, 1, 2, 3, 4, 5, 6])
    hidden = np.array([False, True, True, False, False, False, True])
    source, target = corrupt(text, hidden, np.array([99, 98, 97]))
    assert source.tolist() == [7, 99, 3, 4, 5, 98] and target.tolist() == [99, 1, 2, 98, 6]


def test_568_tokens_become_512_and_114() -> None:
    assert noise_counts(568, 0.15, 3.0) == (85, 28)
    assert corrupted_lengths(568, 0.15, 3.0) == (512, 114) and corrupted_lengths(284, 0.15, 3.0) == (256, 58)
    objective = SpanCorruptionConfig(sentinels=tuple(range(200, 100, -1)), end=0, start=1)
    tokens = torch.randint(2, 100, (3, 569), generator=torch.Generator().manual_seed(0))
    made = objective.prepare(Batch(tokens[:, :-1], tokens[:, 1:], torch.ones(3, 568), torch.arange(3)), 0)
    assert made.source is not None and made.source.shape == (3, 512) and made.targets.shape == (3, 114)
    assert made.tokens == 3 * 114, "sentinels and the end token count"
    assert made.inputs[:, 0].tolist() == [1] * 3 and torch.equal(made.inputs[:, 1:], made.targets[:, :-1])
    assert made.source_lengths is None, "one shape, nothing masked: CUDA graphs can replay it"
    for side in (made.source, made.targets):
        marks = side[side > 100].view(3, 28)
        assert torch.equal(marks, torch.arange(200, 172, -1).expand(3, -1)), "each once, descending"
        assert (side[:, -1] == 0).all()
    assert objective.model_length(568) == 512


def test_hidden_tokens_are_everywhere_alike_but_for_the_edges() -> None:
    hidden = np.stack([random_spans(200, 0.15, 3.0, np.random.default_rng(seed)) for seed in range(2000)])
    assert (hidden.sum(1) == 30).all() and not hidden[:, 0].any() and hidden[:, -1].all()
    inner = hidden[:, 20:180].mean(0)
    assert abs(inner.mean() - 0.15) < 0.01 and inner.std() < 0.02


def test_a_row_that_is_cut_short_has_noise_for_what_there_is() -> None:
    made = OBJECTIVE.prepare(plain(), 3)
    real = corrupted_lengths(29, 0.15, 3.0)[1]
    assert made.weights.sum(1).tolist() == [9.0, 9.0, 9.0, real]
    nothing = plain(length=1, cut=False)
    assert OBJECTIVE.prepare(nothing, 3).tokens == 0, "one token alone hides nothing"


def test_z_loss_is_for_training() -> None:
    model, made = encoder_decoder(), OBJECTIVE.prepare(plain(), 3)
    with_z = replace(OBJECTIVE, z_loss=0.5)
    assert with_z(model.train(), made).total > OBJECTIVE(model, made).total
    assert torch.equal(with_z(model.eval(), made).total, OBJECTIVE(model, made).total)


def test_what_cannot_be_is_refused_in_one_line() -> None:
    for change, line in (
        ({"corruption_rate": 0.0}, "corruption_rate: want above 0 and below 1"),
        ({"mean_span": 0.5}, "mean_span: want at least 1"),
        ({"z_loss": -1.0}, "z_loss: want at least 0"),
    ):
        with pytest.raises(ConfigError, match=line):
            SpanCorruptionConfig(**change)
    with pytest.raises(ConfigError, match=r"tokenizer\.special: want <\|extra_0\|> and so on"):
        SpanCorruptionConfig().resolve({"end": 0, "decoder_start": 0}, 9)
    with pytest.raises(ConfigError, match="which `resolve` fills in"):
        SpanCorruptionConfig().prepare(plain(), 0)
    with pytest.raises(ConfigError, match="an encoder-decoder for span_corruption"):
        OBJECTIVE(language_model(), OBJECTIVE.prepare(plain(), 0))
    with pytest.raises(ConfigError, match="made by `prepare`"):
        OBJECTIVE(encoder_decoder(), plain())


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        (PackedRows(length=64), r"rows\.boundaries: want stream, because span_corruption makes one source"),
        (StreamRows(length=64), r"rows\.kind: want packed, because span_corruption reads plain text"),
        (PairRows(length=64), r"rows\.kind: want packed"),
        (PackedRows(length=4096, boundaries="stream"), r"rows\.length: want shorter rows, because 205 spans"),
    ],
)
def test_rows_that_cannot_serve_are_refused_before_text_is_read(rows: object, line: str) -> None:
    config = RunConfig(model=PresetConfig(name="t5-small"), objective=SpanCorruptionConfig(), rows=rows)
    with pytest.raises(ConfigError, match=line):
        check_fit(config)


# --- sentinels of any tokenizer ---------------------------------------------------------------------------------------


def test_any_tokenizer_provides_sentinels() -> None:
    own = ByteTokenizer(special=SENTINEL_NAMES).train(["a b c"])
    settled = SpanCorruptionConfig().resolve({**own.special, "end": own.end, "decoder_start": own.end}, own.vocab)
    assert settled.sentinels == tuple(range(own.vocab - 1, own.vocab - 101, -1)), "sentinel 0 has the highest id"
    assert decode(ObjectiveConfig, encode(settled)) == settled
    imported = {"<extra_id_0>": 32099, "<extra_id_1>": 32098, "end": 1, "decoder_start": 0}
    assert SpanCorruptionConfig().missing_control_tokens(imported) == ()
    assert SpanCorruptionConfig().resolve(imported, 32100).sentinels == (32099, 32098)


@pytest.mark.parametrize("kind", [ByteTokenizer(), WordPieceTokenizer(vocab=30)], ids=["byte", "wordpiece"])
def test_a_tokenizer_without_them_is_extended(kind: object, tmp_path: Path) -> None:
    plainly: Tokenizer = kind.train(["the cat sat on the mat and ran " * 20])  # type: ignore[attr-defined]
    more = plainly.with_special(SENTINEL_NAMES)
    assert more.vocab == plainly.vocab + 100 and more.special["<|extra_0|>"] == more.vocab - 1
    assert more.encode("the cat <|extra_0|>") == plainly.encode("the cat <|extra_0|>")
    assert plainly.with_special(("<|mask|>",)).special_tokens.mask == plainly.vocab


# --- a run ------------------------------------------------------------------------------------------------------------


def run(text: Path, **changes: object) -> RunConfig:
    config = tiny(text, every__save=4, rows__boundaries="stream", **changes)
    model = PresetConfig(name="t5-small", layers=1, width=32, heads=2, hidden=48, dropout=0.1)
    return replace(config, model=model, objective=SpanCorruptionConfig(z_loss=1e-4))


def test_an_encoder_decoder_learns_plain_text_and_resumes_in_the_same_bits(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt")
    whole = trainer_for(run(text, training__steps=12, every__validate=4), tmp_path / "whole" / "run")
    assert whole.model.context == max(corrupted_lengths(32, 0.15, 3.0))
    whole.fit()
    lines = metrics(tmp_path / "whole" / "run")
    held_out = [line["validation_loss"] for line in lines if "validation_loss" in line]
    assert held_out[-1] < held_out[0] and not any("bits_per_byte" in line for line in lines)
    cut = trainer_for(run(text, training__steps=4), tmp_path / "cut" / "run")
    cut.fit()
    again = trainer_for(run(text, training__steps=12), tmp_path / "cut" / "run")
    assert again.step == 4
    again.fit()
    for name, weight in whole.model.weights().items():
        assert torch.equal(weight, again.model.weights()[name]), name


def test_a_model_from_elsewhere_gets_rows_for_sentinels(tmp_path: Path) -> None:
    text, other = (write_text(tmp_path / name, seed=seed) for seed, name in enumerate(("a.txt", "b.txt")))
    config = run(text, training__steps=1)
    pairs = CorpusConfig(sources=(ParallelSource(source=str(text), target=str(other)),))
    rows = PairRows(length=64, source_length=64, batch=4)
    parent = trainer_for(
        replace(config, data=pairs, rows=rows, objective=SequenceConfig()), tmp_path / "runs" / "parent"
    )
    parent.fit()
    child = trainer_for(replace(config, init=str(tmp_path / "runs" / "parent")), tmp_path / "runs" / "child")
    assert (parent.model.vocab, child.model.vocab) == (257, 357)
    child.fit()
    again = trainer_for(replace(config, init=str(tmp_path / "runs" / "child")), tmp_path / "runs" / "grandchild")
    assert again.model.vocab == 357, "its sentinels are found, none is added"


def test_a_pretrained_tokenizer_without_sentinels_gets_them(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt")
    given = ByteTokenizer().train([text.read_text()])
    given.save(tmp_path / "given.json")
    config = replace(run(text, training__steps=1), tokenizer=PretrainedTokenizer(path=str(tmp_path / "given.json")))
    trainer = trainer_for(config, tmp_path / "run")
    trainer.fit()
    sentinels = trainer.objective.sentinels  # type: ignore[attr-defined]
    assert sentinels == tuple(range(given.vocab + 99, given.vocab - 1, -1)), "the given ids stay as they are"
