"""Few-shot classification: the label whose words a model gives the most probability after a prompt, calibrated.

A label is scored by the total log-probability of its tokens, the space before it included, not divided by their
number. The prompt has the same words for it. Where the tokens of one label begin those of another, what ends an example
is scored after each label too, for else the shorter could not lose. Contextual calibration (Zhao et al. 2021) divides
the probabilities by those after texts without content, and makes them sum to one again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from heddle.core import ConfigError, UsageError
from heddle.decoding.scoring import SharedPrefix, score_continuations
from heddle.models.networks import AutoregressiveModel, Model, require
from heddle.tasks.few_shot.options import FewShot
from heddle.tasks.few_shot.prompts import FittedPrompt, PromptBuilder, common_start
from heddle.tasks.few_shot.template import CLASSIFY
from heddle.tasks.labelling import ClassifiedText
from heddle.text.tokenizers import Tokenizer

CONTENT_FREE = ("N/A", "[MASK]", "")


@dataclass(frozen=True)
class FewShotClassifier:
    """An autoregressive model that chooses among labels."""

    prompts: PromptBuilder
    labels: dict[str, list[int]]  # the ids of each
    calibrate: bool = False
    _priors: dict[int, Tensor] = field(default_factory=dict, repr=False)  # by how many examples a prompt has

    @classmethod
    def of(cls, model: Model, tokenizer: Tokenizer, prompting: FewShot, pairs: bool = False) -> "FewShotClassifier":
        """Return a classifier; refuse a model that writes no text, and labels that cannot be told apart."""
        refusal = UsageError(f"labels: want a model that writes text, got {model.config.noun}")
        builder = prompting.builder(require(model, AutoregressiveModel, refusal), tokenizer, CLASSIFY, pairs)
        return cls(builder, label_ids(builder, prompting.words), prompting.calibrate)

    def run(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[ClassifiedText]:
        """Classify texts, or pairs of texts."""
        if pairs is not None and len(pairs) != len(texts):
            raise UsageError(f"pair: want {len(texts)}, one for each text, got {len(pairs)}")
        fitted = self.prompts.build(texts, [None] * len(texts) if pairs is None else pairs, self._reserved)
        scores = self._scores(fitted)
        if self.calibrate and len(fitted):
            scores = scores - torch.stack([self._prior(one.examples, pairs is not None) for one in fitted])
        return [self._result(row, one.examples) for row, one in zip(scores.softmax(-1).tolist(), fitted, strict=True)]

    @property
    def _reserved(self) -> int:
        """Return the tokens that a prompt must leave space for; the last one of a label is never read."""
        return 0 if self.prompts.model.reads_source else max(map(len, self.labels.values())) - 1

    def _scores(self, fitted: Sequence[FittedPrompt]) -> Tensor:
        """Return the log-probabilities of all labels after each prompt; those with equal examples share a prefix."""
        found = torch.zeros(len(fitted), len(self.labels), dtype=torch.float64)
        for kept in sorted({one.examples for one in fitted}):
            rows = [row for row, one in enumerate(fitted) if one.examples == kept]
            found[rows] = torch.tensor(self._score([fitted[row].ids for row in rows]), dtype=torch.float64)
        return found

    def _score(self, prompts: Sequence[list[int]]) -> list[list[float]]:
        model, ends = self.prompts.model, list(self.labels.values())
        if model.reads_source:
            start = self.prompts.tokenizer.special_tokens.decoder_start
            return score_continuations(model, [SharedPrefix(start, ends, source) for source in prompts])
        return score_continuations(model, [SharedPrefix(ids, ends) for ids in prompts], common_start(prompts))

    def _prior(self, examples: int, pairs: bool) -> Tensor:
        """Return the log of the mean probabilities after texts without content, with as many examples."""
        if examples not in self._priors:
            seconds = [text if pairs else None for text in CONTENT_FREE]
            builder = self.prompts.with_examples(examples)
            probabilities = self._scores(builder.build(CONTENT_FREE, seconds, self._reserved)).softmax(-1)
            self._priors[examples] = probabilities.mean(0).log()
        return self._priors[examples]

    def _result(self, probabilities: list[float], examples: int) -> ClassifiedText:
        named = dict(zip(self.labels, probabilities, strict=True))
        ordered = dict(sorted(named.items(), key=lambda one: -one[1]))
        label, probability = next(iter(ordered.items()))
        return ClassifiedText(label, probability, ordered, (label,), examples=examples)


def label_ids(builder: PromptBuilder, words: dict[str, str]) -> dict[str, list[int]]:
    """Return the ids of each label as it follows a prompt, and what ends it where one begins another."""
    found = {name: _ids(builder, word) for name, word in words.items()}
    rows = list(found.values())
    if any(a is not b and b[: len(a)] == a for a in rows for b in rows):
        if len({tuple(row) for row in rows}) < len(rows):
            raise ConfigError("labels", want="labels of different tokens", got=", ".join(words.values()))
        found = {name: _ids(builder, word, ended=True) for name, word in words.items()}
    for name, row in found.items():
        if not row or builder.tokenizer.unknown in row:
            raise ConfigError("labels", want="words that the tokenizer knows", got=words[name])
    return found


def _ids(builder: PromptBuilder, word: str, ended: bool = False) -> list[int]:
    tokenizer, template = builder.tokenizer, builder.template
    if builder.model.reads_source:
        return [*tokenizer.for_target.encode(word), *((tokenizer.end,) if ended else ())]
    text = template.gap + word + (template.end if ended else "")
    before, whole = tokenizer.encode(template.stem), tokenizer.encode(template.stem + text)
    return whole[len(before) :] if whole[: len(before)] == before else tokenizer.encode(text)
