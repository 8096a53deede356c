"""Few-shot prompting (in-context learning, Brown et al. 2020): examples before a text, as many as fit into the context.

A prompt that is too long loses whole examples, the first ones first; nothing else is ever cut.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from heddle.core import Purpose, UsageError, brief, numpy_generator
from heddle.decoding.runtime import has_kv_cache, longest_row
from heddle.models.networks import AutoregressiveModel
from heddle.tasks.few_shot.template import PromptTemplate
from heddle.text.tokenizers import Tokenizer

log = logging.getLogger("heddle")


@dataclass(frozen=True)
class Example:
    """An example: a text, perhaps a second one, and what the model should write: a label or an answer."""

    text: str
    target: str
    second: str | None = None


@dataclass(frozen=True)
class FittedPrompt:
    """The ids of a prompt, and how many examples it has."""

    ids: list[int]
    examples: int


def draw_examples(examples: Sequence[Example], k: int, seed: int, balanced: bool) -> tuple[Example, ...]:
    """Draw `k` examples in random order; `balanced`: of each label as often as of the others, as far as they go."""
    random = numpy_generator(seed, Purpose.DATA, "few_shot")
    order = random.permutation(len(examples)).tolist()
    if balanced:
        seen: dict[str, int] = {}
        turns = {}
        for index in order:
            turns[index] = seen[examples[index].target] = seen.get(examples[index].target, 0) + 1
        order.sort(key=lambda index: turns[index])  # stable: the first of each label, the second of each, ...
        order = random.permutation(order[:k]).tolist()
    return tuple(examples[index] for index in order[:k])


@final
class PromptBuilder:
    """Writes prompts: an instruction, examples, and the text to answer, for a decoder or as an encoder's source."""

    def __init__(
        self,
        model: AutoregressiveModel,
        tokenizer: Tokenizer,
        template: PromptTemplate,
        examples: Sequence[Example] = (),
        instruction: str = "",
    ) -> None:
        self.model, self.tokenizer, self.template = model, tokenizer, template
        self.given, self.instruction = tuple(examples), instruction
        self._written = [template.example(one.text, one.second, one.target) for one in examples]
        self.noted = False  # set by whoever must not log texts

    def with_examples(self, count: int) -> "PromptBuilder":
        """Return what writes prompts with the last examples alone."""
        kept = self.given[len(self.given) - count :]
        return PromptBuilder(self.model, self.tokenizer, self.template, kept, self.instruction)

    @property
    def capacity(self) -> int | None:
        """Return the most tokens of a prompt with what is written after it; None: no limit."""
        if self.model.reads_source:
            return self.model.context if has_kv_cache(self.model.source_tower) else None
        return longest_row(self.model)

    def build(self, texts: Sequence[str], seconds: Sequence[str | None], reserved: int) -> list[FittedPrompt]:
        """Return the prompt of each text, which leaves reserved for some tokens after it."""
        return [self._fit(text, second, reserved) for text, second in zip(texts, seconds, strict=True)]

    def _fit(self, text: str, second: str | None, reserved: int) -> FittedPrompt:
        start = self.instruction + self.template.end if self.instruction else ""
        last = self.template.prompt(text, second)
        capacity, count = self.capacity, len(self._written)
        for kept in range(count, -1, -1):
            ids = self._ids(start + "".join(self._written[count - kept :]) + last)
            if capacity is None or len(ids) + reserved <= capacity:
                self._note(kept, text)
                return FittedPrompt(ids, kept)
        want = f"a text that fits into the model's context of {capacity} tokens, with {reserved} to be written"
        raise UsageError(f"text: want {want}, got a prompt of {len(ids)} without any example")

    def _ids(self, text: str) -> list[int]:
        if self.model.reads_source:
            return self.tokenizer.source(text)
        return self.tokenizer.encode_prompt(text) or [self.tokenizer.special_tokens.begin]

    def _note(self, kept: int, text: str) -> None:
        """Say once that examples are left out."""
        if kept == len(self.given) or self.noted:
            return
        self.noted = True
        log.warning(
            "few-shot: %d of %d examples fit into the model's context of %s tokens before %s; the first ones are left "
            "out, here and of all prompts that are too long",
            kept, len(self.given), self.capacity, brief(text, 40),
        )  # fmt: skip


def common_start(rows: Sequence[list[int]]) -> list[int]:
    """Return the ids that all rows begin with; each row is longer."""
    if len(rows) < 2:
        return []
    low, high = min(rows), max(rows)  # in the order of their ids, so that all others begin as these two do
    common = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    return list(low[: min(common, min(map(len, rows)) - 1)])
