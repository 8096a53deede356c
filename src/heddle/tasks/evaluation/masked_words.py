"""Masked words: the loss of hidden words per character, which compares encoders of different vocabularies.

Which words are hidden depends on the text alone: 15 % of those between spaces, by a hash. All tokens of a hidden
word are masked and predicted at once (whole-word masking), so the number of masks tells how many tokens the word has.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from heddle.core import ConfigError, UsageError
from heddle.data.sources import source_for
from heddle.tasks.evaluation.labelled import read_documents
from heddle.tasks.evaluation.registry import EvaluationTask, GradedModel, Metrics, register_task
from heddle.tasks.labelling import EncoderReader, encoder_reader
from heddle.text.tokenizers import WORD

SHARE = 0.15
CHARACTERS = 240  # of a piece of text at most, unless one word is longer; about 60 tokens of English
Span = tuple[int, int]


@dataclass(frozen=True)
class HiddenWords:
    """A piece of text, and the places of the words to hide."""

    text: str
    hidden: tuple[Span, ...]

    @property
    def characters(self) -> int:
        """Count the characters of the hidden words."""
        return sum(stop - start for start, stop in self.hidden)


@register_task
class MaskedWordsTask(EvaluationTask):
    """Hidden words of plain text by their loss in nats, for each character and for each word."""

    name = "masked_words"
    about = "hidden words of plain text (loss per character and per word, of an encoder with masked tokens)"

    def examples(self, path: str) -> list[HiddenWords]:
        documents = read_documents(source_for(path).resolve("texts"), path)
        return [piece for document in documents for piece in hide_words(document.text)]

    def predict(self, graded: GradedModel, examples: Sequence[HiddenWords]) -> list[float]:
        reader = encoder_reader(graded.model, graded.tokenizer, self.name)
        output = reader.model.masked_output()
        mask = graded.tokenizer.special_tokens.mask
        if mask is None:
            raise UsageError(f"{self.name}: want a tokenizer with a mask token, got one without")
        losses: list[float] = []
        for start in range(0, len(examples), 256):  # logits of so many pieces at a time
            losses += _losses(reader, output, mask, examples[start : start + 256])
        return losses

    def metrics(self, predictions: Sequence[float], examples: Sequence[HiddenWords]) -> Metrics:
        total = float(np.sum(predictions))
        words = sum(len(one.hidden) for one in examples)
        return {
            "loss_per_character": total / sum(one.characters for one in examples),
            "loss_per_word": total / words,
        }


def hide_words(text: str, share: float = SHARE, longest: int = CHARACTERS) -> list[HiddenWords]:
    """Divide a text between words into pieces, and choose the words to hide: a share of each piece, at least one."""
    found, words = [], [match.span() for match in WORD.finditer(text)]
    first = 0
    for number in range(1, len(words) + 1):
        if number == len(words) or words[number][1] - words[first][0] > longest:
            begin, piece = words[first][0], words[first:number]
            count = max(1, round(share * len(piece)))
            order = sorted(piece, key=lambda span: hashlib.sha256(f"{span} {text}".encode()).digest())
            hidden = sorted((start - begin, stop - begin) for start, stop in order[:count])
            found.append(HiddenWords(text[begin : piece[-1][1]], tuple(hidden)))
            first = number
    return found


def _losses(reader: EncoderReader, output: str, mask: int, examples: Sequence[HiddenWords]) -> list[float]:
    """Return the summed loss of the hidden words of each piece of text."""
    tokenizer, texts, wanted = reader.tokenizer, list[list[int]](), list[list[Span]]()
    for one in examples:
        ids, spans = tokenizer.encode(one.text), tokenizer.spans(one.text)
        hidden = {at for at, span in enumerate(spans) if any(_overlap(span, word) for word in one.hidden)}
        texts.append([mask if at in hidden else id for at, id in enumerate(ids)])
        wanted.append([(at, ids[at]) for at in sorted(hidden)])
    rows = reader.rows(texts)
    if len(rows) != len(texts):
        length = max(len(text) for text in texts)
        want = f"{length} tokens and the special ones, for {CHARACTERS} characters"
        raise ConfigError("context", want=want, got=reader.longest)
    losses = []
    for row, scores, places in zip(rows, reader.scores(output, rows), wanted, strict=True):
        at, ids = torch.tensor(places, dtype=torch.long).view(-1, 2).T
        chosen = scores[at + row.window.shift].double().log_softmax(-1)
        losses.append(-float(chosen.gather(1, ids[:, None]).sum()))
    return losses


def _overlap(span: Span, word: Span) -> bool:
    return span[0] < word[1] and word[0] < span[1]
