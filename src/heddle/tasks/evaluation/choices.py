"""Choices: the next sentence (NSP, Devlin et al. 2018), and the right reply of ten (recall@k, Lowe et al. 2015).

What stands beside the right one is drawn from the same file by a keyed hash: every model meets the same choices.
"""

import hashlib
import re
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from heddle.core import DataError, UsageError
from heddle.data.sources import Document, source_for
from heddle.decoding.scoring import Continuation, nll_given_source
from heddle.models.networks import EncoderDecoder, Model, require
from heddle.tasks.evaluation.labelled import read_documents, read_pairs
from heddle.tasks.evaluation.registry import EvaluationTask, GradedModel, Metrics, register_task
from heddle.tasks.labelling import Embedder, encoder_reader
from heddle.tasks.scoring import ScoringInput, text_scorer

SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
CANDIDATES = 10
MAX_SENTENCES = 3  # sentences of either text of a pair
RANKS = (1, 2, 5)


def keyed(*words: object) -> int:
    """Return a number that depends on these words alone."""
    return int.from_bytes(hashlib.sha256("\x00".join(map(str, words)).encode()).digest()[:8], "big")


# --- does it follow? --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SentencePair:
    """Two texts, and whether the second follows the first in its document."""

    first: str
    second: str
    follows: bool


@register_task
class NextSentenceTask(EvaluationTask):
    """Next-sentence prediction: half of the second texts follow, half are of another document.

    Of a pair that is longer than the model's context, the tokens where the two texts meet are read.
    """

    name = "next_sentence"
    about = "whether a text follows another one (accuracy), for an encoder that learned it, on documents"

    def examples(self, path: str) -> list[SentencePair]:
        split = [SENTENCE.split(one.text) for one in read_documents(source_for(path), path)]
        documents = [kept for one in split if len(kept := [part for part in one if part.strip()]) > 1]
        if len(documents) < 2:
            raise DataError(f"{path}: want two documents of two sentences or more, found {len(documents)}")
        return [_sentence_pair(documents, number) for number in range(len(documents))]

    def predict(self, graded: GradedModel, examples: Sequence[SentencePair]) -> list[bool]:
        reader = encoder_reader(graded.model, graded.tokenizer, self.name)
        names = [output.name for output in reader.model.config.outputs if output.kind == "next_sentence"]
        if not names:
            raise UsageError(f"{self.name}: want an encoder with an output of the kind next_sentence, it has none")
        capacity = reader.longest - len(graded.tokenizer.pair([], []))
        sides = ([one.first for one in examples], [one.second for one in examples])
        both = zip(*(graded.tokenizer.encode_many(texts) for texts in sides), strict=True)
        kept = [_shortened(first, second, capacity) for first, second in both]
        scores = reader.scores(names[0], reader.rows([first for first, _ in kept], [second for _, second in kept]))
        return [bool(one[0] >= one[1]) for one in scores]

    def metrics(self, predictions: Sequence[bool], examples: Sequence[SentencePair]) -> Metrics:
        right = [found == one.follows for found, one in zip(predictions, examples, strict=True)]
        return {"accuracy": sum(right) / len(right)}


def _shortened(first: list[int], second: list[int], capacity: int) -> tuple[list[int], list[int]]:
    """Return the end of the first text and the beginning of the second, as training has them, where both do not fit."""
    second = second[: max(capacity // 2, capacity - len(first))]
    return first[max(0, len(first) + len(second) - capacity) :], second


def _sentence_pair(documents: Sequence[Sequence[str]], number: int) -> SentencePair:
    """Return a pair from a document; every second one goes on in another."""
    own, follows = documents[number], number % 2 == 0
    key = own[0], own[-1], number
    middle = 1 + keyed("middle", *key) % (len(own) - 1)
    first = " ".join(own[max(0, middle - MAX_SENTENCES) : middle])
    if follows:
        return SentencePair(first, " ".join(own[middle : middle + MAX_SENTENCES]), True)
    other = documents[(number + 1 + keyed("other", *key) % (len(documents) - 1)) % len(documents)]
    at = keyed("at", *key) % len(other)
    return SentencePair(first, " ".join(other[at : at + MAX_SENTENCES]), False)


# --- which reply? -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReplyChoice:
    """A context, perhaps with a prototype, and replies to it, of which one is right."""

    context: str
    prototype: str | None
    replies: tuple[str, ...]
    right: int


@register_task
class DialogueTask(EvaluationTask):
    """The right reply among ten: nine are replies to other contexts."""

    name = "dialogue"
    about = "the right reply among ten (recall@1, @2, @5, mean reciprocal rank) on pairs of a context and its reply"

    def examples(self, path: str) -> list[ReplyChoice]:
        pairs = read_pairs(path)
        if len({one.target for one in pairs}) < CANDIDATES or len({one.text for one in pairs}) < 2:
            raise DataError(f"{path}: want {CANDIDATES} different replies or more to choose from, and two contexts")
        answers: dict[str, set[str | None]] = {}
        for one in pairs:
            answers.setdefault(one.text, set()).add(one.target)
        return [_reply_choice(pairs, own, answers[own.text], path) for own in pairs]

    def predict(self, graded: GradedModel, examples: Sequence[ReplyChoice]) -> list[int]:
        """Return the rank of each right reply, from 1; a tie counts against it."""
        scores = _scorer(graded.model)(graded, examples).view(len(examples), CANDIDATES)
        right = torch.tensor([one.right for one in examples])[:, None]
        ranks: list[int] = (scores >= scores.gather(1, right)).sum(1).tolist()
        return ranks

    def metrics(self, predictions: Sequence[int], examples: Sequence[ReplyChoice]) -> Metrics:
        count = len(predictions)
        recalls = {f"recall@{rank}": sum(found <= rank for found in predictions) / count for rank in RANKS}
        return recalls | {"mrr": sum(1 / found for found in predictions) / count}


def _reply_choice(pairs: Sequence[Document], own: Document, known: Set[str | None], path: str) -> ReplyChoice:
    """Return a pair's own reply among others, all different, of which none is known to answer its context."""
    others: list[str] = []
    for attempt in range(100 * CANDIDATES):
        other = pairs[keyed(own.text, own.target, attempt) % len(pairs)]
        if other.target not in known and other.target not in others:
            others.append(str(other.target))
        if len(others) == CANDIDATES - 1:
            right = keyed(own.text, own.target, "right") % CANDIDATES
            return ReplyChoice(own.text, own.prototype, (*others[:right], str(own.target), *others[right:]), right)
    raise DataError(
        f"{path}: want {CANDIDATES - 1} replies to other contexts for {own.text[:40]!r}, found {len(others)}"
    )


Scorer = Callable[[GradedModel, Sequence[ReplyChoice]], Tensor]


def _scorer(model: Model) -> Scorer:
    """Return how a kind of model scores replies, all in a row."""
    if not model.can_generate:
        return _by_embedding
    return _by_source if model.reads_source else _by_continuation


def _by_embedding(graded: GradedModel, examples: Sequence[ReplyChoice]) -> Tensor:
    """Return the cosine of each reply's embedding with its context's."""
    embedder = Embedder.of(graded.model, graded.tokenizer)
    contexts = embedder.run([one.context for one in examples]).repeat_interleave(CANDIDATES, 0)
    return cosine_similarity(embedder.run([reply for one in examples for reply in one.replies]), contexts)


def _by_source(graded: GradedModel, examples: Sequence[ReplyChoice]) -> Tensor:
    """Return the mean log-probability of each reply's tokens, its end included, given the source."""
    refusal = UsageError(f"dialogue: want an encoder-decoder, got {graded.model.config.noun}")
    model, tokenizer = require(graded.model, EncoderDecoder, refusal), graded.tokenizer
    first, *rest = tokenizer.special_tokens.decoder_start
    own = [tokenizer.source(one.context, one.prototype) for one in examples]
    sources = [source for source in own for _ in range(CANDIDATES)]
    replies = tokenizer.for_target.encode_many([reply for one in examples for reply in one.replies])
    targets = [Continuation([*ids, tokenizer.special_tokens.end], rest) for ids in replies]
    return torch.stack([-losses.mean() for losses in nll_given_source(model, sources, targets, first)])


def _by_continuation(graded: GradedModel, examples: Sequence[ReplyChoice]) -> Tensor:
    """Return the mean log-probability of each reply's tokens, as the line after its context."""
    scorer = text_scorer(graded.model, graded.tokenizer)
    inputs = [ScoringInput(reply, context=f"{one.context}\n") for one in examples for reply in one.replies]
    return torch.tensor([found.logprob / max(1, len(found.ids)) for found in scorer.run(inputs)])
