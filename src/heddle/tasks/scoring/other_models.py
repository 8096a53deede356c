"""Held-out loss of encoders, by pseudo-log-likelihood (Salazar et al. 2020), and of encoder-decoders, teacher-forced.

An encoder reads a text in windows that do not overlap, each by itself, and each token is masked in turn; the end of a
text is not predicted. An encoder-decoder reads each source whole, and predicts each token of the right target, and its
end, from those before (teacher forcing).
"""

import math
from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from heddle.core import ConfigError, DataError
from heddle.data.shards import Shards
from heddle.decoding.scoring import Continuation, MaskedText
from heddle.models.networks import Encoder, EncoderDecoder
from heddle.tasks.scoring.counts import Counts, Evaluation, documents_of, encoded_texts
from heddle.tasks.scoring.nll import conditional_token_nll, masked_token_nll
from heddle.text.tokenizers import Tokenizer

BATCH = 256  # pairs read at once


def evaluate_encoder(
    model: Encoder, tokenizer: Tokenizer, texts: Iterable[str] | Shards, window: int | None = None
) -> Evaluation:
    """Measure an encoder by the pseudo-log-likelihood of texts, `window` tokens at a time; None: its context."""
    special_tokens = tokenizer.special_tokens
    around = len(special_tokens.document_start) + len(special_tokens.text.after)
    longest = model.context - around
    length = longest if window is None else window
    if not 1 <= length <= longest:
        want = f"1 to {longest} tokens, the model's context without special tokens"
        raise ConfigError("window", want=want, got=length)
    counts = Counts()
    read = documents_of(texts, tokenizer, counts)
    windows = (MaskedText(ids) for ids in _windows(read, length, tokenizer, counts))
    nats = math.fsum(float(losses.double().sum()) for losses in masked_token_nll(model, tokenizer, windows))
    counts.tokens -= counts.documents  # the ends, which are not predicted
    if not counts.tokens:
        raise DataError("evaluation: want one document with text or more, got none")
    return counts.evaluation(nats, length, length, "pseudo-log-likelihood")


def _windows(
    documents: Iterator[NDArray[np.int64]], length: int, tokenizer: Tokenizer, counts: Counts
) -> Iterator[list[int]]:
    """Yield the windows of documents without the end tokens that close them."""
    for ids in documents:
        own = ids[:-1].tolist()
        counts.count_unknown(ids[:-1], tokenizer)
        yield from (own[start : start + length] for start in range(0, len(own), length))


def evaluate_pairs(model: EncoderDecoder, tokenizer: Tokenizer, pairs: Iterable[tuple[str, str]]) -> Evaluation:
    """Measure an encoder-decoder on targets given their sources."""
    target, counts, nats, left = tokenizer.for_target, Counts(), list[float](), iter(pairs)
    while some := list(islice(left, BATCH)):
        rows = [*encoded_texts((text for _, text in some), target, counts)]
        for ids in rows:
            counts.count_unknown(ids, target)
        losses = conditional_token_nll(model, tokenizer, [source for source, _ in some], map(Continuation, rows))
        nats += [float(each.double().sum()) for each in losses]
    if not counts.documents:
        raise DataError("evaluation: want one pair or more, got none")
    return counts.evaluation(math.fsum(nats), None, None, "teacher-forced")
