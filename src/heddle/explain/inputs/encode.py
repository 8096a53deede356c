"""Encoding a text to be explained: a prompt, a source and its output, or a text with masks."""

import re
from collections.abc import Sequence

from torch import Tensor

from heddle.core import UsageError
from heddle.decoding.generation import GenerationConfig, generate
from heddle.decoding.runtime import Source
from heddle.explain.inputs.forward import DecoderReading, EncoderReading, PairReading, Reading, needs_tokenizer
from heddle.explain.inputs.options import ExplainOptions
from heddle.models.networks import Encoder, EncoderDecoder, LanguageModel, Model, require
from heddle.text.tokenizers import MASK, Tokenizer

MASKS = ("[MASK]", "<mask>", MASK)  # what a mask may be written as, beside the tokenizer's own name for it


Given = str | Sequence[int] | Tensor  # a text, ids, or the features of a source that is no text


def read(model: Model, tokenizer: Tokenizer | None, text: Given, options: ExplainOptions) -> Reading:
    """Return a text, or ids or features as given, as the model reads it."""
    refusal = UsageError(
        f"explain: want a language model, an encoder-decoder or an encoder, got {type(model).__name__}"
    )
    if model.reads != "ids" and not (model.reads_source and isinstance(text, Tensor)):
        raise UsageError(f"explain: want a model of texts, got one of {model.reads}")
    if model.reads_source:
        pair, source = require(model, EncoderDecoder, refusal), _source(text, tokenizer)
        return PairReading(pair, tokenizer, source, _written(pair, tokenizer, source, options))
    if isinstance(text, Tensor):
        raise UsageError(f"explain: want a text, because the model is {model.config.noun}, got features")
    if options.output is not None:
        raise UsageError("output: want none, because only an encoder-decoder writes an output to a text")
    if model.can_generate:
        return DecoderReading(require(model, LanguageModel, refusal), tokenizer, _ids(text, tokenizer, "prompt"))
    encoder = require(model, Encoder, refusal)
    return EncoderReading(encoder, tokenizer, _ids(text, tokenizer, "encoder"))


def _source(text: Given, tokenizer: Tokenizer | None) -> Source:
    return text if isinstance(text, Tensor) else _ids(text, tokenizer, "source")


def _ids(text: str | Sequence[int], tokenizer: Tokenizer | None, role: str) -> list[int]:
    if not isinstance(text, str):
        return [int(id) for id in text]
    own = needs_tokenizer(tokenizer, "explain")
    if role == "source":
        return own.source(text)
    if role == "encoder":
        return own.special_tokens.text.apply(_with_masks(text, own))
    return [*own.special_tokens.document_start, *own.encode(text)]


def _with_masks(text: str, tokenizer: Tokenizer) -> list[int]:
    """Encode a text in which masks are written by name."""
    mask = tokenizer.special_tokens.mask
    if mask is None:
        return tokenizer.encode(text)
    names = "|".join(re.escape(name) for name in {*MASKS, tokenizer.token(mask)})
    first, *rest = re.split(names, text)
    ids = tokenizer.encode(first)
    for piece in rest:
        ids += [mask, *tokenizer.encode(piece)]
    return ids


def _written(model: EncoderDecoder, tokenizer: Tokenizer | None, source: Source, options: ExplainOptions) -> list[int]:
    """Return the output that is looked at: as given, or what the model writes greedily."""
    if options.output is not None and not isinstance(options.output, str):
        return [int(id) for id in options.output]
    special = needs_tokenizer(tokenizer, "output").for_target.special_tokens
    if options.output is not None:
        return [*special.decoder_start, *needs_tokenizer(tokenizer, "output").for_target.encode(options.output)]
    config = GenerationConfig(max_tokens=options.max_tokens).with_special_tokens(
        special.begin, special.ends, special.never
    )
    (found,) = generate(model, [special.decoder_start], config, [source])
    return [*special.decoder_start, *(found[:-1] if found and found[-1] in special.ends else found)]
