"""Passkey retrieval (Mohtashami & Jaggi 2023): does a model repeat a number that it read far back in a long text?

A text has a number somewhere in it, said once; it ends by asking for it. An answer is right if greedy decoding writes
every token of the number, which holds when each is the most probable one after those before it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from heddle.core import UsageError
from heddle.data.sources import source_for
from heddle.decoding.runtime import StreamingConfig
from heddle.decoding.scoring import Continuation, nll_long_texts
from heddle.models.networks import LanguageModel, require
from heddle.tasks.evaluation.labelled import read_documents
from heddle.tasks.evaluation.registry import EvaluationTask, GradedModel, Metrics, register_task
from heddle.tasks.scoring import with_document_start
from heddle.text.tokenizers import Tokenizer

TIMES = (0.5, 1.0, 2.0, 4.0, 8.0)  # lengths of texts, in trained lengths
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)  # where the number is said, from the beginning to the end
KEYS = 4  # numbers for each length and depth
SAID, ASKED = " The pass key is {key}. Remember it: {key} is the pass key. ", " What is the pass key? The pass key is"


@dataclass(frozen=True)
class PasskeyExample:
    """A number, where it is said, and how long the text is.

    times: the length of the text in trained lengths.
    depth: where the number is said: 0: at the beginning, 1: at the end.
    filler: the text around it, as far as it is needed.
    """

    key: str
    times: float
    depth: float
    filler: str


@register_task
class PasskeyTask(EvaluationTask):
    """A number said once in a long text (--data: any text), by the length of the text in trained lengths."""

    name = "passkey"
    about = "a number that was said once in a long text (--data: the text around it), up to 8 trained lengths"

    def examples(self, path: str) -> list[PasskeyExample]:
        texts = read_documents(source_for(path).resolve("texts"), path)
        return passkey_examples(" ".join(" ".join(one.text.split()) for one in texts))

    def predict(self, graded: GradedModel, examples: Sequence[PasskeyExample]) -> list[bool | None]:
        refusal = UsageError(f"passkey: want a language model, got {graded.model.config.noun}")
        return answer_passkeys(require(graded.model, LanguageModel, refusal), graded.tokenizer, examples)

    def metrics(self, predictions: Sequence[bool | None], examples: Sequence[PasskeyExample]) -> Metrics:
        return passkey_metrics(predictions, examples)


def passkey_examples(
    filler: str, times: Sequence[float] = TIMES, depths: Sequence[float] = DEPTHS, keys: int = KEYS, seed: int = 0
) -> list[PasskeyExample]:
    """Return an example for each length, depth and number."""
    draw = np.random.default_rng(seed)
    return [
        PasskeyExample(f"{draw.integers(10_000, 100_000)}", length, depth, filler)
        for length in times
        for depth in depths
        for _ in range(keys)
    ]


def passkey_text(key: str, before: str, after: str) -> str:
    """Return a text that says a number and ends with it, as models are trained on to be graded so."""
    return f"{before}{SAID.format(key=key)}{after}{ASKED} {key}"


def passkey_metrics(predictions: Sequence[bool | None], examples: Sequence[PasskeyExample]) -> Metrics:
    """Return the share of right answers: of all texts that could be read, and for each length."""
    found: dict[str, list[bool]] = {"accuracy": []}
    for right, example in zip(predictions, examples, strict=True):
        if right is not None:
            found["accuracy"].append(right)
            found.setdefault(f"accuracy_at_{example.times:g}x", []).append(right)
    return {name: float(np.mean(each)) for name, each in found.items() if each}


def answer_passkeys(
    model: LanguageModel,
    tokenizer: Tokenizer,
    examples: Sequence[PasskeyExample],
    streaming: StreamingConfig | None = None,
) -> list[bool | None]:
    """Return whether each number is repeated; None where the text is longer than the model's positions."""
    most = None if streaming is not None else model.max_length
    built = [_continuation(tokenizer, one, round(one.times * model.context)) for one in examples]
    read = [number for number, one in enumerate(built) if most is None or _length(one) <= most]
    begin, documents = with_document_start(tokenizer, (built[number] for number in read))

    def is_wrong(vectors: Tensor, targets: Tensor) -> Tensor:
        best = [model.head.logits(some).argmax(-1) for some in vectors.split(512)]
        return (torch.cat(best) != targets).float() if best else targets.float()

    right: list[bool | None] = [None] * len(examples)
    for number, wrong in zip(read, nll_long_texts(model, documents, begin, streaming, is_wrong), strict=True):
        right[number] = not bool(wrong.any())
    if not read:
        want = f"a model that reads {min(map(_length, built))} tokens, the shortest text"
        raise UsageError(f"passkey: want {want}, got one of {most} positions")
    return right


def _length(text: Continuation) -> int:
    return len(text.context) + len(text.ids)


def _continuation(tokenizer: Tokenizer, example: PasskeyExample, length: int) -> Continuation:
    """Return the text in ids, so long with its filler, and the number to continue it with."""
    said, asked = (tokenizer.encode(text.format(key=example.key)) for text in (SAID, ASKED))
    answer = tokenizer.encode(f" {example.key}")
    room = max(0, length - len(said) - len(asked) - len(answer) - 1)
    filler = _cut(tokenizer, example.filler, room)
    place = round(example.depth * len(filler))
    return Continuation(answer, [*filler[:place], *said, *filler[place:], *asked])


def _cut(tokenizer: Tokenizer, text: str, tokens: int) -> list[int]:
    """Return the first tokens of a text, which is repeated where it is too short."""
    found: list[int] = []
    for part in _parts(text):
        if len(found) >= tokens:
            break
        found += tokenizer.encode(part)
    return found[:tokens]


def _parts(text: str) -> Iterator[str]:
    """Yield pieces of a text, over and over."""
    pieces = [text[start : start + 4000] for start in range(0, len(text), 4000)]
    if not pieces:
        raise UsageError("passkey: want a text to hide the number in, got an empty one")
    while True:
        yield from pieces
