"""Perplexity, loss and bits per byte of held-out text under a language model.

Every document begins from the `end` token, as in training, and its closing `end` is predicted too: its NLL is counted
and it is one of the tokens, although it is neither a word nor a byte of the text.

The published perplexity of a word-level benchmark is that per token of a word tokenizer, with a token for each line
end. The state is carried over the whole text (`carry`), or the text is read through sliding windows.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heddle.core import DataError, UsageError
from heddle.data.shards import Shards
from heddle.data.sources import EncodedDocument
from heddle.decoding.scoring import ScoringWindows, nll_sliding_window, nll_with_carried_state, scoring_windows
from heddle.models.networks import Encoder, LanguageModel, Model, require
from heddle.tasks.scoring.counts import Counts, Evaluation, check_ids, documents_of
from heddle.tasks.scoring.nll import token_nll
from heddle.tasks.scoring.other_models import evaluate_encoder
from heddle.text.tokenizers import Tokenizer


def evaluate(
    model: Model,
    tokenizer: Tokenizer,
    texts: Iterable[str] | Shards,
    window: int | None = None,
    stride: int | None = None,
    carry: bool = False,
) -> Evaluation:
    """Measure a language model on texts or shards by a sliding window: by default its context, at half of it as stride.

    With `carry`, a recurrent model keeps its state from document to document instead. An encoder is measured by
    pseudo-log-likelihood.
    """
    if not model.can_generate:
        _refuse_for_encoder(stride, carry)
        encoder = require(model, Encoder, UsageError("evaluate: want a language model or an encoder of texts"))
        return evaluate_encoder(encoder, tokenizer, texts, window)
    refusal = "evaluate: want pairs of a source and a target for an encoder-decoder, and texts for any other model"
    model = require(model, LanguageModel, UsageError(refusal))
    if carry and (window, stride) != (None, None):
        raise UsageError("carry: cannot be combined with `window` or `stride`")
    if isinstance(texts, Shards) and texts.loss_mask is not None:
        return evaluate_chats(model, tokenizer, _stored_chats(texts, tokenizer), window, stride, carry)
    windows = None if carry else scoring_windows(model, window, stride)
    counts = Counts()
    read = documents_of(texts, tokenizer, counts)
    documents = _count_unknown(read, tokenizer.unknown, counts)
    if windows is None:
        found = nll_with_carried_state(model, documents, tokenizer.special_tokens.begin)
    else:
        found = token_nll(model, tokenizer, documents, windows)
    nats = math.fsum(float(losses.double().sum()) for losses in found)
    if not counts.documents:
        raise DataError("evaluation: want one document or more, got none")
    return counts.evaluation(nats, *_sizes(windows))


def _refuse_for_encoder(stride: int | None, carry: bool) -> None:
    for name, given in (("stride", stride is not None), ("carry", carry)):
        if given:
            raise UsageError(f"{name}: has no effect on an encoder, which reads each window by itself")


def evaluate_chats(
    model: Model,
    tokenizer: Tokenizer,
    chats: Iterable[EncodedDocument],
    window: int | None = None,
    stride: int | None = None,
    carry: bool = False,
) -> Evaluation:
    """Measure a language model on the answers of conversations, each given the turns before it."""
    if carry:
        raise UsageError("carry: not supported for conversations, each of which starts from an empty state")
    model = require(model, LanguageModel, UsageError("evaluate: want a language model for conversations"))
    windows, counts = scoring_windows(model, window, stride), Counts()
    losses = _answer_losses(model, chats, windows, tokenizer, counts)
    nats = math.fsum(float(each.double().sum()) for each in losses)
    if not counts.documents:
        raise DataError("evaluation: want one conversation or more, got none")
    return counts.evaluation(nats, *_sizes(windows))


def _answer_losses(
    model: LanguageModel,
    chats: Iterable[EncodedDocument],
    windows: ScoringWindows,
    tokenizer: Tokenizer,
    counts: Counts,
) -> Iterator[Tensor]:
    """Yield the losses of the tokens that count; a conversation begins from its own first id."""
    marks: deque[NDArray[np.bool_]] = deque()

    def rest(chat: EncodedDocument) -> NDArray[Any]:
        assert chat.counts is not None
        marks.append(chat.counts[1:])
        counts.documents += 1
        counts.tokens += int(marks[-1].sum())
        counts.words += chat.words
        counts.bytes += chat.bytes
        counts.lost += chat.lost
        if tokenizer.unknown is not None:
            counts.unknown += int((chat.ids[1:][marks[-1]] == tokenizer.unknown).sum())
        return chat.ids[1:]

    for first, some in groupby(chats, lambda chat: int(chat.ids[0])):
        for losses in nll_sliding_window(model, map(rest, some), windows, first):
            yield losses[torch.from_numpy(marks.popleft())]


def _stored_chats(shards: Shards, tokenizer: Tokenizer) -> Iterator[EncodedDocument]:
    """Yield stored conversations; the first carries the byte and word counts of all."""
    check_ids(shards, tokenizer)
    assert shards.loss_mask is not None
    for i in range(shards.count):
        size, words, lost = (shards.bytes, shards.words, shards.lost) if i == 0 else (0, 0, 0)
        yield EncodedDocument(shards.document(i), size, words, shards.loss_mask.document(i).astype(np.bool_), lost)


def _count_unknown(documents: Iterable[NDArray[Any]], unknown: int | None, counts: Counts) -> Iterator[NDArray[Any]]:
    """Yield documents, and count their unknown tokens."""
    for ids in documents:
        if unknown is not None:
            counts.unknown += int((ids == unknown).sum())
        yield ids


def _sizes(windows: ScoringWindows | None) -> tuple[int | None, int | None]:
    return (None, None) if windows is None else (windows.length, windows.stride)
