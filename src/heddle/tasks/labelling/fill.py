"""Filling in: the most probable tokens for each mask of a text, by masked language modelling (Devlin et al. 2018)."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from heddle.core import ConfigError, UsageError
from heddle.models.networks import Model
from heddle.tasks.labelling.reader import EncoderReader, encoder_reader
from heddle.text.tokenizers import MASK, Tokenizer

MASKS = ("[MASK]", "<mask>", MASK)  # what a mask may be written as, beside the tokenizer's own name for it


@dataclass(frozen=True)
class FilledToken:
    """A token for a mask, its probability, and the text with it in the mask's place."""

    token: str
    id: int
    probability: float
    text: str

    def plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class MaskFiller:
    """An encoder with an output for masked tokens."""

    reader: EncoderReader
    top: int = 5

    @classmethod
    def of(cls, model: Model, tokenizer: Tokenizer, top: int = 5) -> "MaskFiller":
        """Return a filler of masks; refuse a model or a tokenizer without them."""
        if top < 1:
            raise ConfigError("top", want="at least 1", got=top)
        reader = encoder_reader(model, tokenizer, "fill")
        reader.model.masked_output()
        if tokenizer.special_tokens.mask is None:
            raise UsageError("fill: want a tokenizer with a mask token, got one without")
        return cls(reader, top)

    @property
    def mask(self) -> int:
        """Return the mask's id."""
        found = self.reader.tokenizer.special_tokens.mask
        assert found is not None
        return found

    def run(self, texts: Sequence[str]) -> list[list[list[FilledToken]]]:
        """Return the best tokens for each mask of each text, the most probable first."""
        pieces = [self._pieces(text) for text in texts]
        rows = self.reader.rows([self._ids(one) for one in pieces])
        found: list[list[list[FilledToken]]] = [[] for _ in texts]
        for row, scores in zip(rows, self.reader.scores(self.reader.model.masked_output(), rows), strict=True):
            places = range(row.window.own_start + row.window.shift, row.window.own_stop + row.window.shift)
            for place in (place for place in places if row.ids[place] == self.mask):
                gap = len(found[row.text])
                found[row.text].append(list(self._best(scores[place], pieces[row.text], gap)))
        return found

    def _best(self, scores: torch.Tensor, pieces: list[str], gap: int) -> Iterator[FilledToken]:
        tokenizer = self.reader.tokenizer
        probabilities = scores.double().softmax(-1)
        best = probabilities[: tokenizer.vocab].topk(min(self.top, tokenizer.vocab))
        for probability, id in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            filled = list(self._ids(pieces))
            at = [place for place, one in enumerate(filled) if one == self.mask][gap]
            filled[at] = id
            yield FilledToken(tokenizer.decode([id]).strip(), id, probability, tokenizer.decode(filled))

    def _pieces(self, text: str) -> list[str]:
        """Divide a text at its masks."""
        own = self.reader.tokenizer.token(self.mask)
        pieces = re.split("|".join(map(re.escape, sorted({own, *MASKS}, key=len, reverse=True))), text)
        if len(pieces) < 2:
            raise UsageError(f"fill: want a mask in the text, such as {own}, found none in {text[:60]!r}")
        return pieces

    def _ids(self, pieces: Sequence[str]) -> list[int]:
        """Return the ids of pieces with masks between them; some masks take the space before them."""
        tokenizer = self.reader.tokenizer
        strips = self.mask in tokenizer.added and tokenizer.added[self.mask].lstrip
        ids: list[int] = []
        for number, piece in enumerate(pieces):
            last = number + 1 == len(pieces)
            ids += tokenizer.encode(piece.rstrip() if strips and not last else piece)
            ids += [] if last else [self.mask]
        return ids
