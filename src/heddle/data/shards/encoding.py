"""Encoding: documents to ids, and media to arrays, in threads, a bounded number ahead of what is written."""

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from heddle.data.media import Media, MediaFault
from heddle.data.sources import (
    ChatEncoder,
    Document,
    EncodedDocument,
    RejectedDocument,
    SkipReason,
    SplitDocument,
    encode_documents,
)
from heddle.text.tokenizers import Tokenizer

BATCH = 1 << 19  # characters encoded at once: large enough to fill the cores, small enough to be forgotten
BATCH_TEXTS = 4096
AHEAD = 4  # batches read before the oldest must be written
WORKERS = 2  # one encodes while the other's ids become arrays; the library has its own threads inside


@dataclass(frozen=True, slots=True)
class DecodedMedia:
    """The array of a medium; the text that belongs to it follows."""

    array: NDArray[Any]


# Of a text, of the two of a pair, of a conversation, or of a medium and its text.
EncodingResult = tuple[EncodedDocument | DecodedMedia | RejectedDocument, ...]
Waiting = tuple[list[SplitDocument], Future[list[EncodingResult]]]


def encode_all(
    tokenizer: Tokenizer, chat_encoder: ChatEncoder | None, split_documents: Iterator[SplitDocument]
) -> Generator[tuple[SplitDocument, EncodingResult], None, None]:
    """Encode documents in threads, a bounded number ahead, and yield them in their order."""
    waiting: deque[Waiting] = deque()
    with ThreadPoolExecutor(WORKERS, "encode") as pool:
        try:
            for batch in _batches(split_documents):
                documents = [document for _, document in batch]
                waiting.append((batch, pool.submit(_encode, tokenizer, chat_encoder, documents)))
                if len(waiting) > AHEAD:
                    yield from _finished(*waiting.popleft())
            while waiting:
                yield from _finished(*waiting.popleft())
        finally:
            for _, future in waiting:
                future.cancel()


def _batches(split_documents: Iterator[SplitDocument]) -> Iterator[list[SplitDocument]]:
    batch: list[SplitDocument] = []
    size = 0
    for side, document in split_documents:
        batch.append((side, document))
        size += len(document.text) + len(document.target or "") + len(document.pair or "")
        size += 0 if document.media is None else document.media.file_size
        if size >= BATCH or len(batch) >= BATCH_TEXTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _finished(
    batch: list[SplitDocument], future: Future[list[EncodingResult]]
) -> Iterator[tuple[SplitDocument, EncodingResult]]:
    return zip(batch, future.result(), strict=True)


def _encode(tokenizer: Tokenizer, chat_encoder: ChatEncoder | None, documents: list[Document]) -> list[EncodingResult]:
    """Encode documents, and decode their media, whose arrays come before the ids of their texts."""
    texts = encode_documents(tokenizer, chat_encoder, documents)
    pairs = zip(documents, texts, strict=True)
    return [found if one.media is None else (_decode(one.media), *found) for one, found in pairs]


def _decode(media: Media) -> DecodedMedia | RejectedDocument:
    """Return the array of a medium, or why it cannot be used."""
    try:
        return DecodedMedia(media.decode())
    except MediaFault as fault:
        return RejectedDocument(SkipReason(fault.reason), fault.words)
