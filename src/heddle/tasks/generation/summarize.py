"""Summarization with an encoder-decoder: the settings of imported models (T5's prefix), windows of long texts, ROUGE.

A text that is longer than the model's context is summarized in windows that overlap (as in Zhang et al. 2022, each part
by itself); of their summaries, sentences that an earlier window has written already are left out.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heddle.core import UsageError
from heddle.data.shards import text_windows
from heddle.decoding import GenerationOptions
from heddle.models.networks import EncoderDecoder, Model, require
from heddle.tasks.generation.model_settings import summary_settings_of
from heddle.tasks.generation.translate import Translator
from heddle.text.tokenizers import Tokenizer

OVERLAP = 0.125  # share of a window that the next one repeats
SENTENCE = re.compile(r"(?<=[.!?])\s+")
DEFAULTS: Mapping[str, Any] = {"beams": 4, "length_penalty": 1.0, "max_tokens": 128}


@dataclass(frozen=True)
class Summary:
    """The summary of a text, and in how many windows the text was read."""

    text: str
    windows: int = 1


@dataclass(frozen=True)
class Summarizer:
    """A translator from texts to summaries, and the text that comes before each source."""

    translator: Translator
    prefix: str = ""

    def run(self, texts: Sequence[str]) -> list[Summary]:
        """Return the summary of each text; a blank one has an empty summary."""
        windows = [self.windows(text) for text in texts]
        found = iter(self.translator.translate([ids for one in windows for ids in one]))
        return [Summary(merged([next(found).text for _ in one]), len(one)) for one in windows]

    def windows(self, text: str) -> list[list[int]]:
        """Return the sources of a text: one, or several that overlap where it is longer than the model's context."""
        if not text.strip():
            return []
        tokenizer, model = self.translator.tokenizer, self.translator.model
        template = tokenizer.special_tokens.source
        before = [*template.before, *(tokenizer.encode(self.prefix.strip()) if self.prefix else ())]
        whole = tokenizer.source(self.prefix + text)
        if len(whole) <= model.context:
            return [whole]
        ids = tokenizer.encode(text)
        capacity = model.context - len(before) - len(template.after)
        if capacity < 1:
            raise UsageError(f"the model's context of {model.context} tokens has no space for a text")
        every = text_windows(len(ids), capacity, round(OVERLAP * capacity))
        return [[*before, *ids[one.start : one.stop], *template.after] for one in every]


def merged(summaries: Sequence[str]) -> str:
    """Join the summaries of windows; a sentence that an earlier one has is left out."""
    if len(summaries) == 1:
        return summaries[0]
    sentences = (sentence.strip() for summary in summaries for sentence in SENTENCE.split(summary))
    return " ".join(dict.fromkeys(sentence for sentence in sentences if sentence))


def summarizer(
    model: Model,
    tokenizer: Tokenizer,
    settings: Mapping[str, Any],
    options: GenerationOptions,
    batch: int = 16,
) -> Summarizer:
    """Return a summarizer by the model's own settings; options that are given come first."""
    refusal = UsageError(f"summarize: want an encoder-decoder, trained on pairs; this model is {model.config.noun}")
    own = summary_settings_of(settings, tokenizer)
    config = own.generation_config(options, DEFAULTS)
    return Summarizer(Translator(require(model, EncoderDecoder, refusal), tokenizer, config, batch), own.prefix)
