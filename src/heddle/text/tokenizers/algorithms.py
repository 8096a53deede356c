"""Tokenizer training: byte, character, word, byte-pair encoding (BPE, Sennrich et al. 2016), WordPiece (Schuster &
Nakajima 2012), unigram (Kudo 2018). BPE and unigram work on bytes: no unknown tokens, and lossless."""

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar, Literal, Self

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

from heddle.core import Config, ConfigError, DataError, Positive, fields_of, part, replace, settings
from heddle.core.system import parse_json
from heddle.text.tokenizers.chunks import split_into_chunks
from heddle.text.tokenizers.pretokenize import HEDDLE
from heddle.text.tokenizers.tokenizer import (
    END,
    UNKNOWN,
    Pipeline,
    Tokenizer,
    byte_symbols,
    catch_panics,
    refuse_surrogates,
)

# Patterns of word tokenizers; a line end is a word too. `<|` is always separate: no text spells a special token.
WORDS = {"apart": r"\n|\w+(?:['’]\w+)*|[^\w\s]", "attached": r"\n|<\||(?:[^\s<]|<(?!\|))+"}
SPECIAL = re.compile(r"<\|[a-z0-9_]*[a-z0-9][a-z0-9_]*\|>")
UNBOUNDED = 1 << 31
LETTERS = 256  # that WordPiece always keeps; of more, the most frequent in a quarter of its vocabulary


@settings
class TokenizerConfig(Config):
    """A kind of tokenizer: `train` reads texts and returns a Tokenizer.

    `special` names special tokens beyond `<|end|>`, such as `<|mask|>`; `vocab` includes them.

    special: special tokens beyond `<|end|>`, such as `<|mask|>`; the vocabulary includes them.
    """

    smallest: ClassVar[int] = 0  # vocabulary without special tokens
    learns: ClassVar[bool] = True  # from texts; else all its tokens are known

    special: tuple[str, ...] = ()

    @property
    def pretrained(self) -> str | None:
        """Return where a trained tokenizer is; None: it is trained with the run."""
        return None

    def absolute(self) -> Self:
        """Return the config with absolute paths."""
        return self

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.special:
            if not SPECIAL.fullmatch(name) or name == END:
                raise ConfigError("special", want="names such as <|mask|>, other than <|end|>", got=name)
        if len(set(self.special)) < len(self.special):
            raise ConfigError("special", want="each name once", got=list(self.special))
        if (vocab := fields_of(self).get("vocab")) is not None:
            self._text_vocab(vocab)

    @property
    def control_tokens(self) -> tuple[str, ...]:
        """Return the names of all special tokens; they have the highest ids."""
        return (END, *self.special)

    def train(self, texts: Iterable[str]) -> Tokenizer:
        """Learn a vocabulary from texts, which are read once and in chunks; no text at all is refused."""
        with catch_panics([]):
            pipeline = self.learn(_chunks(texts))
        pipeline.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in self.control_tokens])
        return Tokenizer(pipeline)

    @abstractmethod
    def learn(self, texts: Iterator[str]) -> Pipeline:
        """Return the library's pipeline, without special tokens."""

    def _text_vocab(self, vocab: int) -> int:
        """Return the size of the vocabulary without special tokens, which must not be too small."""
        if vocab < self.smallest + len(self.control_tokens):
            raise ConfigError("vocab", want=f"at least {self.smallest + len(self.control_tokens)}", got=vocab)
        return vocab - len(self.control_tokens)

    def _check_filled(self, found: int, size: int) -> None:
        """Refuse a vocabulary that is too large for the text, or too small for its characters."""
        if found != size:
            bound = "at most" if found < size else "at least"
            most = f"{bound} {found + len(self.control_tokens)}, all that this text allows"
            raise ConfigError("vocab", want=most, got=size + len(self.control_tokens))


@part("byte")
class ByteTokenizer(TokenizerConfig):
    """Bytes: one token for each byte of UTF-8, whose id is the byte; nothing to learn."""

    learns: ClassVar[bool] = False

    def learn(self, texts: Iterator[str]) -> Pipeline:
        """Return the same pipeline for every text."""
        vocab = {symbol: byte for symbol, byte in byte_symbols().items()}
        pipeline = Pipeline(models.BPE(vocab=vocab, merges=[]))
        pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        pipeline.decoder = decoders.ByteLevel()
        return pipeline


@part("character")
class CharacterTokenizer(TokenizerConfig):
    """Characters: one token for each character seen, or for the most frequent; others are unknown.

    vocab: most tokens; null: every character seen.
    lowercase: whether text is put in lower case first.
    """

    smallest: ClassVar[int] = 2

    vocab: int | None = None
    lowercase: bool = False

    def learn(self, texts: Iterator[str]) -> Pipeline:
        """Count characters; ties go by code point."""
        size = None if self.vocab is None else self._text_vocab(self.vocab)
        normalizer = _lower(self.lowercase)
        ranked = _ranked(_count(texts, normalizer))
        if size is not None:
            self._check_filled(1 + min(len(ranked), size - 1), size)
            ranked = ranked[: size - 1]
        vocab = {symbol: i for i, symbol in enumerate([UNKNOWN, *sorted(ranked)])}
        pipeline = Pipeline(models.BPE(vocab=vocab, merges=[], unk_token=UNKNOWN, fuse_unk=False))
        pipeline.normalizer = normalizer
        pipeline.decoder = decoders.Fuse()
        return pipeline


@part("word")
class WordTokenizer(TokenizerConfig):
    """Words: one token for each word seen at least `least` times; rarer ones are unknown.

    Words are separated by whitespace, with `punctuation` apart or attached; each line end is a token. Decoding joins
    the words of a line by one space.

    vocab: most tokens; null: every word that is frequent enough.
    lowercase: whether text is put in lower case first.
    least: how often a word must occur to be known.
    punctuation: whether punctuation marks are words of their own, or stay attached to words.
    """

    smallest: ClassVar[int] = 2

    vocab: int | None = None
    lowercase: bool = False
    least: Positive = 1
    punctuation: Literal["apart", "attached"] = "apart"

    def learn(self, texts: Iterator[str]) -> Pipeline:
        """Count words; ties go by alphabet."""
        size = None if self.vocab is None else self._text_vocab(self.vocab)
        pipeline = Pipeline(models.WordLevel(vocab={UNKNOWN: 0}, unk_token=UNKNOWN))
        pipeline.normalizer = _lower(self.lowercase)
        words = Regex(WORDS[self.punctuation])
        pipeline.pre_tokenizer = pre_tokenizers.Split(words, behavior="removed", invert=True)
        pipeline.decoder = decoders.Sequence(
            [decoders.WordPiece(prefix="\0", cleanup=False), decoders.Fuse(), decoders.Replace(Regex(" ?\n ?"), "\n")]
        )
        most = UNBOUNDED if size is None else size + 1  # one more, for U+FFFD as a word of the text
        trainer = trainers.WordLevelTrainer(
            vocab_size=most, min_frequency=self.least, special_tokens=[UNKNOWN], show_progress=False
        )
        found = _train(pipeline, texts, trainer)
        ranked = [UNKNOWN, *sorted(found.keys() - {UNKNOWN}, key=found.__getitem__)][:size]
        if size is not None:
            self._check_filled(len(ranked), size)
        vocab = {word: id for id, word in enumerate(ranked)}
        return _with_model(pipeline, models.WordLevel(vocab=vocab, unk_token=UNKNOWN))


@part("bpe")
class BpeTokenizer(TokenizerConfig):
    """Byte-pair encoding (BPE, Sennrich et al. 2016) on bytes: the most frequent pair is merged, again and again.

    vocab: how many tokens to learn; null: 4096, or as many as a small text allows.
    least: how often a pair must occur to be merged.
    lowercase: whether text is put in lower case first, for metrics that ignore case.
    order: ids by the order of merges, or by frequency in the text, as adaptive softmax needs; special tokens are last.
    """

    smallest: ClassVar[int] = 256

    vocab: int | None = None
    least: Positive = 2
    lowercase: bool = False
    order: Literal["merges", "frequency"] = "merges"

    def learn(self, texts: Iterator[str]) -> Pipeline:
        """Learn the merges; a pair seen fewer than `least` times is not merged."""
        if self.order == "merges":
            return self._merges(texts)
        kept = list(texts)
        return _by_frequency(self._merges(iter(kept)), kept)

    def _merges(self, texts: Iterator[str]) -> Pipeline:
        size = self._text_vocab(4096 if self.vocab is None else self.vocab)
        pipeline = _byte_level_pipeline(models.BPE())
        pipeline.normalizer = _lower(self.lowercase)
        trainer = trainers.BpeTrainer(
            vocab_size=size, min_frequency=self.least, initial_alphabet=sorted(byte_symbols()), show_progress=False
        )
        found = len(_train(pipeline, texts, trainer))
        if self.vocab is not None:
            self._check_filled(found, size)
        return pipeline


@part("wordpiece")
class WordPieceTokenizer(TokenizerConfig):
    """WordPiece, as in BERT: words split into the longest known pieces; accents go with case, each mark is a word.

    A word of an unseen character, or of more than 100 characters, is unknown. Decoding joins words by one space.

    vocab: how many tokens to learn.
    lowercase: whether text is put in lower case first, without accents.
    """

    smallest: ClassVar[int] = 8

    vocab: int = 8192
    lowercase: bool = True

    def learn(self, texts: Iterator[str]) -> Pipeline:
        """Learn pieces by frequency of pairs, in two passes.

        The library numbers letters inside words in random order and breaks ties by number, so the first pass finds the
        letters and the second is given them in order: the same texts give the same vocabulary.
        """
        size = self._text_vocab(self.vocab)
        pipeline = Pipeline(models.WordPiece(vocab={UNKNOWN: 0}, unk_token=UNKNOWN))
        pipeline.normalizer = normalizers.BertNormalizer(lowercase=self.lowercase)
        pipeline.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        pipeline.decoder = decoders.WordPiece(cleanup=False)
        kept = list(texts)
        counts = _count(kept, pipeline.normalizer)
        letters = [c for c in _ranked(counts) if not c.isspace()][: max(LETTERS, size // 4)]
        known = _train(pipeline, iter(kept), _wordpiece(1, letters, [UNKNOWN]))
        first = [UNKNOWN, *sorted(known.keys() - {UNKNOWN})]
        vocab = _train(pipeline, iter(kept), _wordpiece(size, letters, first))
        self._check_filled(len(vocab), size)
        return _with_model(pipeline, models.WordPiece(vocab=vocab, unk_token=UNKNOWN))


@part("unigram")
class UnigramTokenizer(TokenizerConfig):
    """Unigram (Kudo 2018) on bytes: each piece has a probability, and a text becomes its most probable pieces.

    vocab: how many tokens to learn.
    """

    smallest: ClassVar[int] = 256

    vocab: int = 8192

    def learn(self, texts: Iterator[str]) -> Pipeline:
        """Learn pieces by expectation maximization, from many down to `vocab`."""
        size = self._text_vocab(self.vocab)
        pipeline = _byte_level_pipeline(models.Unigram())
        trainer = trainers.UnigramTrainer(
            vocab_size=size, initial_alphabet=sorted(byte_symbols()), unk_token=None, show_progress=False
        )
        _train(pipeline, texts, trainer)
        model = parse_json(pipeline.to_str())["model"]
        self._check_filled(len(model["vocab"]), size)
        return _with_model(pipeline, models.Unigram(_reproducible_scores(model["vocab"]), None, False))


@part("pretrained")
class PretrainedTokenizer(TokenizerConfig):
    """A trained tokenizer: a file that `heddle tokenizer train` wrote, or that of a run, a folder or another model.

    path: where it is: a file, a run, a folder with tokenizer files, or another model.
    special: nothing; a trained tokenizer has its special tokens.
    """

    path: str

    def __post_init__(self) -> None:
        if self.special:
            raise ConfigError("special", want="nothing, because a trained tokenizer has its own", got=self.special[0])

    @property
    def pretrained(self) -> str:
        """Return where it is."""
        return self.path

    def absolute(self) -> Self:
        """Return the config with an absolute path, so that it means the same file in any working folder."""
        here = Path(self.path).expanduser()
        return replace(self, path=str(here.absolute())) if here.exists() else self

    def learn(self, texts: Iterator[str]) -> Pipeline:
        """Refuse to train it again."""
        raise ConfigError("kind", want="one to train, such as bpe", got=self.kind)


def _chunks(texts: Iterable[str]) -> Iterator[str]:
    empty = True
    for text in texts:
        refuse_surrogates(text)
        for chunk in split_into_chunks(text):
            empty = False
            yield chunk
    if empty:
        raise DataError("tokenizer: want text to learn from, got none")


def _lower(wanted: bool) -> normalizers.Normalizer | None:
    return normalizers.Lowercase() if wanted else None


def _count(texts: Iterable[str], normalizer: normalizers.Normalizer | None) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text if normalizer is None else normalizer.normalize_str(text))
    del counts[UNKNOWN]
    return counts


def _ranked(counts: Counter[str]) -> list[str]:
    return sorted(counts, key=lambda c: (-counts[c], c))


def _wordpiece(vocab: int, letters: list[str], first: list[str]) -> trainers.Trainer:
    return trainers.WordPieceTrainer(
        vocab_size=vocab,
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        special_tokens=first,
        show_progress=False,
    )


def _reproducible_scores(scores: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Make unigram scores reproducible: the library sums, and orders unseen bytes, at random."""
    lowest = round(min((score for chunk, score in scores if len(chunk) > 1), default=0.0), 6)
    settled = [(chunk, round(score, 6)) for chunk, score in scores]
    settled = [(chunk, lowest - 1 if len(chunk) == 1 and score <= lowest else score) for chunk, score in settled]
    return sorted(settled, key=lambda pair: (-pair[1], pair[0]))


def _byte_level_pipeline(model: models.Model) -> Pipeline:
    pipeline = Pipeline(model)
    pattern = pre_tokenizers.Split(Regex(HEDDLE), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pipeline.pre_tokenizer = pre_tokenizers.Sequence([pattern, to_bytes])
    pipeline.decoder = decoders.ByteLevel()
    return pipeline


def _train(pipeline: Pipeline, texts: Iterator[str], trainer: trainers.Trainer) -> dict[str, int]:
    pipeline.train_from_iterator(texts, trainer)
    return dict(pipeline.get_vocab(with_added_tokens=True))


def _by_frequency(learnt: Pipeline, texts: list[str]) -> Pipeline:
    """Return byte-pair encoding with other ids: the most frequent token of the texts is 0; ties go by the old ids."""
    counts: Counter[int] = Counter()
    for text in texts:
        counts.update(learnt.encode(text).ids)
    model = parse_json(learnt.to_str())["model"]
    ranked = sorted(model["vocab"], key=lambda token: (-counts[model["vocab"][token]], model["vocab"][token]))
    vocab = {token: id for id, token in enumerate(ranked)}
    return _with_model(learnt, models.BPE(vocab=vocab, merges=[tuple(pair) for pair in model["merges"]]))


def _with_model(learnt: Pipeline, model: models.Model) -> Pipeline:
    """Return the same pipeline with another model and no added tokens: unknown is not a special token."""
    pipeline = Pipeline(model)
    pipeline.normalizer = learnt.normalizer
    pipeline.pre_tokenizer = learnt.pre_tokenizer
    pipeline.decoder = learnt.decoder
    return pipeline
