"""Chat encoding: documents to ids with a loss mask; of a conversation, only what is to be learnt has a loss."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from heddle.core import UsageError, first_line
from heddle.data.sources.documents import Conversation, Document, SkipReason
from heddle.text.chat import Chat
from heddle.text.tokenizers import Tokenizer

Learn = Literal["answers", "all"]
Ids = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class EncodedDocument:
    """Ids, their loss mask, and the bytes and words of the text that has a loss."""

    ids: Ids
    bytes: int
    words: int
    counts: NDArray[np.bool_] | None = None  # None: all of them
    lost: int = 0  # bytes of that text that unknown tokens stand for


@dataclass(frozen=True, slots=True)
class RejectedDocument:
    """Why a document that could be read cannot be trained on."""

    reason: SkipReason
    words: str = ""


class ChatEncoder:
    """Encodes conversations by a chat template, with a loss on the answers alone or on all.

    The first id has no loss, since nothing precedes it. An answer that ends a conversation without a stop token is
    followed by the end of the document, which then has a loss too.
    """

    def __init__(self, template: str, tokenizer: Tokenizer, learn: Learn) -> None:
        self.template, self.chat, self.learn = template, Chat(template, tokenizer), learn

    def encode(self, conversation: Conversation) -> EncodedDocument | RejectedDocument:
        """Return a conversation's ids, or why the template rejects it."""
        try:
            example = self.chat.training_example(conversation.messages, tools=conversation.tools)
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
        lost = sum(map(self.chat.tokenizer.lost_bytes, texts))
        return EncodedDocument(np.array(ids, np.uint32), size, words, counts, lost)


def encode_documents(
    tokenizer: Tokenizer, chat_encoder: ChatEncoder | None, documents: Sequence[Document]
) -> list[tuple[EncodedDocument | RejectedDocument, ...]]:
    """Encode documents: the ids of a text or a conversation, or those of both sides of a pair or both answers."""
    parts = [() if d.conversation is not None else tuple(d.texts) for d in documents]
    prototypes = iter(tokenizer.encode_arrays([d.prototype for d in documents if d.prototype is not None]))
    ids = iter(tokenizer.encode_arrays([text for texts in parts for text in texts]))
    found: list[tuple[EncodedDocument | RejectedDocument, ...]] = []
    for document, texts in zip(documents, parts, strict=True):
        if document.rejected is not None:
            prompt, answers = next(ids), [(text, next(ids)) for text in texts[1:]]
            found.append(tuple(_answer(tokenizer, prompt, *answer) for answer in answers))
        elif document.conversation is None:
            encoded = [_encoded(tokenizer, text, next(ids)) for text in texts]
            if document.prototype is not None:
                source = [encoded[0].ids, np.array(tokenizer.special_tokens.separator, np.uint32), next(prototypes)]
                encoded[0] = replace(encoded[0], ids=np.concatenate(source))
            found.append(tuple(encoded))
        else:
            assert chat_encoder is not None, "conversations need a template"
            both = (document.conversation, document.rejected_conversation)
            found.append(tuple(chat_encoder.encode(one) for one in both if one is not None))
    return found


def _answer(tokenizer: Tokenizer, prompt: Ids, text: str, ids: Ids) -> EncodedDocument:
    """Return a prompt with an answer and its end, of which answer and end have a loss."""
    before = np.array(tokenizer.special_tokens.document_start[1:], np.uint32)
    whole = np.concatenate((before, prompt, ids, [tokenizer.end])).astype(np.uint32)
    counts = np.arange(len(whole)) >= len(before) + len(prompt)
    return replace(_encoded(tokenizer, text, ids), ids=whole, counts=counts)


def _encoded(tokenizer: Tokenizer, text: str, ids: Ids) -> EncodedDocument:
    lost = tokenizer.lost_bytes(text) if tokenizer.unknown is not None and (ids == tokenizer.unknown).any() else 0
    return EncodedDocument(ids, len(text.encode()), len(text.split()), lost=lost)
