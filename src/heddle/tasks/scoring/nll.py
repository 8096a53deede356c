"""Negative log-likelihood (NLL) per token, with the special tokens that the tokenizer puts around a text."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from heddle.core import UsageError
from heddle.decoding import scoring
from heddle.decoding.generation import GenerationConfig
from heddle.models.networks import Encoder, EncoderDecoder, LanguageModel
from heddle.text.tokenizers import MASK, Tokenizer


def with_special_tokens(config: GenerationConfig, tokenizer: Tokenizer) -> GenerationConfig:
    """Return a generation config with the beginning and the end tokens of a tokenizer."""
    special_tokens = tokenizer.special_tokens
    return config.with_special_tokens(special_tokens.begin, special_tokens.ends, special_tokens.never, tokenizer.vocab)


def token_nll(
    model: LanguageModel,
    tokenizer: Tokenizer,
    documents: Iterable[scoring.Document | scoring.Continuation],
    windows: scoring.ScoringWindows,
    token_loss: scoring.TokenLoss | None = None,
) -> Iterator[scoring.Losses]:
    """Yield the NLL of each token of documents under a language model, in nats."""
    first, framed = with_document_start(tokenizer, documents)
    return scoring.nll_sliding_window(model, framed, windows, first, token_loss)


def with_document_start(
    tokenizer: Tokenizer, documents: Iterable[scoring.Document | scoring.Continuation]
) -> tuple[int, Iterator[scoring.Document | scoring.Continuation]]:
    """Return the id that a document begins with, and documents with what follows that id put before them."""
    first, *rest = tokenizer.special_tokens.document_start
    return first, _with_prefix(rest, documents)


def conditional_token_nll(
    model: EncoderDecoder,
    tokenizer: Tokenizer,
    sources: Sequence[str],
    documents: Iterable[scoring.Continuation],
    token_loss: scoring.TokenLoss | None = None,
) -> Iterator[scoring.Losses]:
    """Yield the NLL of each token of targets under an encoder-decoder, given the text of each source."""
    first, *rest = tokenizer.special_tokens.decoder_start
    framed = [tokenizer.special_tokens.source.apply(ids) for ids in tokenizer.encode_many(sources)]
    return iter(scoring.nll_given_source(model, framed, list(_with_prefix(rest, documents)), first, token_loss))


def masked_token_nll(
    model: Encoder, tokenizer: Tokenizer, texts: Iterable[scoring.MaskedText]
) -> Iterator[scoring.Losses]:
    """Yield the NLL of each masked token of texts under an encoder (pseudo-log-likelihood, Salazar et al. 2020)."""
    special_tokens = tokenizer.special_tokens
    first, *rest = special_tokens.document_start
    framed = (replace(t, left=[*rest, *t.left], right=[*t.right, *special_tokens.text.after]) for t in texts)
    return scoring.nll_masked(model, framed, mask_id(tokenizer), first)


def mask_id(tokenizer: Tokenizer, caller: str = "score") -> int:
    """Return the id of the mask token; refuse a tokenizer without one."""
    if tokenizer.special_tokens.mask is None:
        raise UsageError(f"{caller}: want a tokenizer with a mask, such as {MASK}, to hide tokens from an encoder")
    return tokenizer.special_tokens.mask


def _with_prefix(
    prefix: Sequence[int], documents: Iterable[scoring.Document | scoring.Continuation]
) -> Iterator[scoring.Document | scoring.Continuation]:
    """Yield documents with a prefix of ids put before them."""
    for document in documents:
        if not prefix:
            yield document
        elif isinstance(document, scoring.Continuation):
            yield replace(document, context=[*prefix, *document.context])
        else:
            yield scoring.Continuation(document, prefix)
