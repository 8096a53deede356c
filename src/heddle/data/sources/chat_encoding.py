"""Lessons: documents to ids, with what of them counts. A text counts whole; of a conversation, what is to be learnt."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from heddle.core import UsageError, first_line
from heddle.data.sources.documents import Document, SkipReason, Turns
from heddle.text.chat import Chat
from heddle.text.tokenizers import Tokenizer

Learn = Literal["answers", "all"]
Ids = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class EncodedDocument:
    """Ids, those that count, and the bytes and words that what counts had as text."""

    ids: Ids
    bytes: int
    words: int
    counts: NDArray[np.bool_] | None = None  # None: all of them


@dataclass(frozen=True, slots=True)
class RejectedDocument:
    """Why a document that could be read cannot be learnt from."""

    reason: SkipReason
    words: str = ""


class ChatEncoder:
    """What a model is to learn of conversations that its template writes: the answers, or all.

    The first id never counts, for the model is given it. An answer that ends a conversation without a token that ends
    answers is followed by the end of a document, which then counts as part of it.
    """

    def __init__(self, template: str, tokenizer: Tokenizer, learn: Learn) -> None:
        self.template, self.chat, self.learn = template, Chat(template, tokenizer), learn

    def encode(self, turns: Turns) -> EncodedDocument | RejectedDocument:
        """Return a conversation's ids, or why the template has none for it."""
        try:
            example = self.chat.training_example(turns.messages, tools=turns.tools)
        except UsageError as error:
            return RejectedDocument(SkipReason.BAD_TURNS, first_line(error))
        ids, everything = example.ids, self.learn == "all"
        counts = np.array([False, *(own or everything for own in example.assistant_mask[1:])])
        if not counts.any():
            return RejectedDocument(SkipReason.NO_ANSWER)
        if example.assistant_mask[-1] and ids[-1] not in self.chat.stops.ids:
            ids, counts = [*ids, self.chat.tokenizer.end], np.append(counts, True)
        texts = [text for text, own in example.texts if own or everything]
        size, words = sum(len(text.encode()) for text in texts), sum(len(text.split()) for text in texts)
        return EncodedDocument(np.array(ids, np.uint32), size, words, counts)


def encode_documents(
    tokenizer: Tokenizer, chat_encoder: ChatEncoder | None, documents: Sequence[Document]
) -> list[tuple[EncodedDocument | RejectedDocument, ...]]:
    """Return what becomes of each document: one text's ids, or those of a pair's two."""
    parts = [() if d.turns is not None else (d.text,) if d.target is None else (d.text, d.target) for d in documents]
    ids = iter(tokenizer.encode_arrays([text for texts in parts for text in texts]))
    found: list[tuple[EncodedDocument | RejectedDocument, ...]] = []
    for document, texts in zip(documents, parts, strict=True):
        if document.turns is None:
            found.append(tuple(EncodedDocument(next(ids), len(text.encode()), len(text.split())) for text in texts))
        else:
            assert chat_encoder is not None, "conversations need a template"
            found.append((chat_encoder.encode(document.turns),))
    return found
