"""Few-shot question answering by generation: from memory (closed book, Roberts et al. 2020), or with a context.

An answer is generated greedily up to what ends the answers of examples, a line break unless the template has another.
An encoder-decoder without examples or a template reads the question alone, as one that was fine-tuned does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from math import fsum
from typing import Any

from heddle.core import UsageError
from heddle.decoding import GenerationOptions
from heddle.decoding.generation import GenerationConfig
from heddle.decoding.runtime import PrefixCache, Request
from heddle.models.networks import Model
from heddle.tasks.few_shot.options import FewShot
from heddle.tasks.few_shot.prompts import FittedPrompt, PromptBuilder, common_start
from heddle.tasks.few_shot.template import ANSWER
from heddle.tasks.generation import TextGenerator, text_generator
from heddle.text.tokenizers import Tokenizer

TOKENS = 1 << 14  # of all rows that are generated side by side


@dataclass(frozen=True)
class GeneratedAnswer:
    """An answer that was generated, its log-probability in nats, and how many examples its prompt has."""

    text: str
    logprob: float
    examples: int

    def plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class AnswerGenerator:
    """An autoregressive model that answers questions."""

    prompts: PromptBuilder
    generator: TextGenerator
    max_tokens: int

    @classmethod
    def of(cls, model: Model, tokenizer: Tokenizer, prompting: FewShot, contexts: bool = False) -> "AnswerGenerator":
        """Return what answers by generation; refuse a model that writes no text."""
        generator = text_generator(model, tokenizer)
        if model.reads_source and prompting.template is None and not prompting.shots:
            start = "{context}\n" if contexts else ""
            prompting = FewShot(template=start + "{question} {answer}", max_tokens=prompting.max_tokens)
        builder = prompting.builder(generator.model, tokenizer, ANSWER, contexts)
        cache = None if model.reads_source else PrefixCache(generator.model)
        return cls(builder, TextGenerator(generator.model, tokenizer, prefix_cache=cache), prompting.max_tokens)

    @property
    def stop(self) -> str:
        """Return the text before which an answer ends."""
        end = self.prompts.template.end
        return "\n" if end.startswith("\n") else end

    def run(self, questions: Sequence[str], contexts: Sequence[str] | None = None) -> list[GeneratedAnswer]:
        """Answer questions."""
        if contexts is not None and len(contexts) != len(questions):
            raise UsageError(f"context: want {len(questions)}, one for each question, got {len(contexts)}")
        fitted = self.fitted(questions, contexts)
        found: dict[int, GeneratedAnswer] = {}
        for batch in self._batches(fitted):
            found |= dict(zip(batch, self._generate([fitted[number] for number in batch]), strict=True))
        return [found[number] for number in range(len(questions))]

    def fitted(self, questions: Sequence[str], contexts: Sequence[str] | None = None) -> list[FittedPrompt]:
        """Return the prompt of each question."""
        reserved = 0 if self.prompts.model.reads_source else self.max_tokens - 1
        seconds = [None] * len(questions) if contexts is None else contexts
        return self.prompts.build(questions, seconds, reserved)

    @property
    def config(self) -> GenerationConfig:
        """Return how answers are generated."""
        return self.generator.generation_config(GenerationOptions(max_tokens=self.max_tokens, logprobs=0))

    def request(self, prompt: FittedPrompt) -> Request:
        """Return what is generated after a prompt."""
        if self.prompts.model.reads_source:
            return Request(self.prompts.tokenizer.special_tokens.decoder_start, prompt.ids)
        return Request(prompt.ids)

    def _batches(self, fitted: Sequence[FittedPrompt]) -> Iterator[list[int]]:
        """Yield numbers of prompts with equal examples, bounded by tokens."""
        order = sorted(range(len(fitted)), key=lambda number: (fitted[number].examples, len(fitted[number].ids)))
        for _, equal in groupby(order, key=lambda number: fitted[number].examples):
            rows = list(equal)
            count = max(1, TOKENS // (len(fitted[rows[-1]].ids) + self.max_tokens))
            yield from (rows[first : first + count] for first in range(0, len(rows), count))

    def _generate(self, fitted: Sequence[FittedPrompt]) -> Iterator[GeneratedAnswer]:
        if self.generator.prefix_cache is not None:
            self.generator.prefix_cache.read(common_start([one.ids for one in fitted]))
        requests = [self.request(one) for one in fitted]
        for one, made in zip(fitted, self.generator.generate(requests, self.config, self.stop), strict=True):
            yield GeneratedAnswer(made.text.strip(), fsum(made.completion.logprobs), one.examples)
