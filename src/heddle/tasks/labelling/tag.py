"""Tagging: the tag of each word with its probability and place, and the entities that tags stand for."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from heddle.core.metrics import entities
from heddle.data.shards import first_tokens
from heddle.models.networks import Model
from heddle.tasks.labelling.reader import EncoderReader, encoder_reader, trim_span
from heddle.text.tokenizers import Tokenizer

WORD = re.compile(r"\w+(?:['’\-.]\w+)*|[^\w\s]")  # words, numbers and abbreviations; any other mark by itself
OUTSIDE = "O"  # the tag of a word that the tokenizer drops
Span = tuple[int, int]


@dataclass(frozen=True)
class TaggedWord:
    """A word, or a token, with its tag and where it is in the text, from the character `start` to before `end`."""

    text: str
    start: int
    end: int
    tag: str
    probability: float


@dataclass(frozen=True)
class Entity:
    """A named entity, or another chunk that IOB tags stand for; its probability is the least of its words'."""

    kind: str
    text: str
    start: int
    end: int
    probability: float


@dataclass(frozen=True)
class TaggedText:
    """The words of a text with their tags; tokens are what the model has tagged, of which a word's first counts."""

    text: str
    words: tuple[TaggedWord, ...]
    tokens: tuple[TaggedWord, ...]

    @property
    def entities(self) -> list[Entity]:
        """Return the entities that the tags stand for."""
        found = []
        for kind, first, after in entities([word.tag for word in self.words]):
            words = self.words[first:after]
            start, end = words[0].start, words[-1].end
            found.append(Entity(kind, self.text[start:end], start, end, min(word.probability for word in words)))
        return found

    def plain(self) -> dict[str, Any]:
        """Return words and entities as plain data."""
        return {
            "words": [asdict(word) for word in self.words],
            "entities": [asdict(entity) for entity in self.entities],
        }


@dataclass(frozen=True)
class Tagger:
    """An encoder with an output for the tag of each token."""

    reader: EncoderReader

    @classmethod
    def of(cls, model: Model, tokenizer: Tokenizer) -> "Tagger":
        """Return a tagger; refuse a model without tags."""
        reader = encoder_reader(model, tokenizer, "tag")
        reader.model.output_of("token_class")
        return cls(reader)

    def run(self, texts: Sequence[str | Sequence[str]]) -> list[TaggedText]:
        """Tag texts, or lists of words; of a text that is longer than a row, each token is tagged where it shows most.

        The words of a text are those that `WORD` finds.
        """
        whole = [text if isinstance(text, str) else " ".join(text) for text in texts]
        words = [_words(text) if isinstance(text, str) else _places(text) for text in texts]
        tokenizer, output = self.reader.tokenizer, self.reader.model.output_of("token_class")
        rows = self.reader.rows(tokenizer.encode_many(whole))
        spans = [tokenizer.spans(text) for text in whole]
        found = [torch.zeros(len(one), len(output.class_names)) for one in spans]
        for row, scores in zip(rows, self.reader.scores(output.name, rows), strict=True):
            own = slice(row.window.own_start, row.window.own_stop)
            first = row.window.own_start + row.window.shift
            found[row.text][own] = scores[first : first + own.stop - own.start].softmax(-1)
        every = zip(whole, words, spans, found, strict=True)
        return [self._result(*one, output.class_names) for one in every]

    def _result(
        self, text: str, words: Sequence[Span], spans: Sequence[Span], found: torch.Tensor, names: tuple[str, ...]
    ) -> TaggedText:
        best = found.max(-1) if len(found) else None
        tags = [] if best is None else [(names[i], p) for p, i in zip(*(x.tolist() for x in best), strict=True)]
        trimmed = [trim_span(text, span) for span in spans]
        tokens = tuple(TaggedWord(text[a:b], a, b, *tag) for (a, b), tag in zip(trimmed, tags, strict=True))
        first = {word: token for token, word in first_tokens(spans, words)}
        tagged, last = [], (OUTSIDE, 0.0)
        for number, (start, end) in enumerate(words):
            shared = number not in first and any(a < end and b > start for a, b in spans)
            last = tags[first[number]] if number in first else last if shared else (OUTSIDE, 0.0)
            tagged.append(TaggedWord(text[start:end], start, end, *last))
        return TaggedText(text, tuple(tagged), tokens)


def _words(text: str) -> list[Span]:
    return [found.span() for found in WORD.finditer(text)]


def _places(words: Sequence[str]) -> list[Span]:
    """Return where words are that are joined by spaces."""
    found, at = [], 0
    for word in words:
        found.append((at, at + len(word)))
        at += len(word) + 1
    return found
