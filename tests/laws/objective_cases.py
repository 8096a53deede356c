"""Objective cases: one small objective, model and batch for every registered kind, for laws that are written once.

A kind without a line in `CASES` fails `test_every_objective_has_a_case`. A law asks a case what its objective promises:
what a model costs that knows nothing, and how input and targets give back the text.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from laws.cases import ENCODERS, SMALL, ids
from torch import Tensor

from heddle.core import replace, swap
from heddle.data.rows import Batch, SentencePairBatch, TokenTraits
from heddle.models.networks import Model
from heddle.models.presets import build
from heddle.nn.base import Context
from heddle.nn.ends import FrameEmbeddingConfig
from heddle.nn.outputs import CtcOutputConfig
from heddle.objectives import (
    CtcAttentionConfig,
    CtcConfig,
    DenoisingConfig,
    DistillationConfig,
    DocumentRotationConfig,
    MaskedTokenConfig,
    MixedObjectiveConfig,
    MixtureConfig,
    NextSentenceConfig,
    NextTokenConfig,
    ObjectiveConfig,
    PreferenceConfig,
    PrefixLMConfig,
    ReplacedTokenConfig,
    SentenceOrderConfig,
    SentencePermutationConfig,
    SequenceConfig,
    SpanCorruptionConfig,
    TextInfillingConfig,
    TokenDeletionConfig,
    TokenMaskingConfig,
)

TEXT, END, MASK, FIRST_SENTINEL = 23, 23, 24, 44  # ids of the text are below 23; sentinels are 44, 43, ... 25
VOCAB, LENGTH, ROWS = 45, 40, 4
FRAMES = 96
# Words begin with ids below 10, sentences end with 20 to 22.
TRAITS = TokenTraits(np.arange(VOCAB) < 10, np.zeros(VOCAB, bool), (np.arange(VOCAB) >= 20) & (np.arange(VOCAB) < TEXT))
SENTINELS = tuple(range(FIRST_SENTINEL, MASK, -1))

Texts = list[list[int]]


def plain(rows: int = ROWS, length: int = LENGTH, first: int = 0, cut: bool = True) -> Batch:
    """Return rows of plain text, of which the last is cut short; the next token is the target."""
    tokens = ids(rows, length + 1, seed=7)
    lengths = torch.full((rows,), length)
    lengths[-1] = length - 11 if cut else length
    real = torch.arange(length) < lengths[:, None]
    inputs, targets = tokens[:, :-1].where(real, END), tokens[:, 1:].where(real, END)
    return Batch(inputs, targets, real.float(), torch.arange(first, first + rows))


def pairs() -> Batch:
    """Return rows of a source and a target."""
    batch = plain()
    return dataclasses.replace(batch, source=ids(ROWS, 9, seed=8), source_lengths=torch.tensor([9, 4, 1, 6]))


def sentence_pairs() -> Batch:
    """Return rows of two texts, the last of them cut short; END stands before, between and after."""
    batch, middle = plain(), torch.tensor([9, 20, 4, 15])
    lengths = (batch.weights > 0).sum(1)
    inputs = batch.inputs.clone()
    inputs[:, 0] = END
    inputs[torch.arange(ROWS), middle - 1] = END
    inputs[torch.arange(ROWS), lengths - 1] = END
    segments = (torch.arange(LENGTH) >= middle[:, None]).long()
    fields = {"segments": segments, "lengths": lengths, "labels": torch.tensor([0, 1, 1, 0])}
    return SentencePairBatch(inputs, batch.targets, batch.weights, batch.rows, **fields)


def preferences() -> Batch:
    """Return rows of two answers to one prompt of six tokens, side by side, each cut short in its own place."""
    size = LENGTH // 2
    texts, place = plain(length=size, cut=False).targets, torch.arange(size)
    ends = torch.tensor([20, 12, 9, 15]), torch.tensor([14, 20, 8, 7])
    targets = [texts.where(place < 6, texts.roll(number, 1)) for number in range(2)]
    inputs = [torch.cat((torch.full((ROWS, 1), END), target[:, :-1]), 1) for target in targets]
    weights = [((place >= 6) & (place < end[:, None])).float() for end in ends]
    return Batch(torch.cat(inputs, 1), torch.cat(targets, 1), torch.cat(weights, 1), torch.arange(ROWS))


def texts_of(batch: Batch) -> Texts:
    """Return the text of each row of plain text."""
    return [row[weights > 0].tolist() for row, weights in zip(batch.targets, batch.weights, strict=True)]


def language_model() -> Model:
    return build("gpt2", **SMALL["gpt2"], vocab=VOCAB, context=LENGTH).double()


def encoder() -> Model:
    return build("distilbert-masked", **ENCODERS["distilbert"], vocab=VOCAB, context=LENGTH).double()


def electra() -> Model:
    return build("electra-small", **ENCODERS["electra"], vocab=VOCAB, context=LENGTH).double()


def pair_encoder() -> Model:
    return build("bert-base-pretraining", **ENCODERS["bert"], vocab=VOCAB, context=LENGTH).double()


def encoder_decoder() -> Model:
    return build("t5-small", **SMALL["t5"], vocab=VOCAB, context=LENGTH).double()


def speech() -> Model:
    return build("speech_transformer", **SMALL["speech_transformer"], vocab=VOCAB, context=FRAMES).double()


def recognizer(make: Callable[[], Model] = speech) -> Model:
    """Return a model of frames with a CTC output."""
    config = make().config.with_ctc(CtcOutputConfig())
    return swap(FrameEmbeddingConfig, lambda frames: replace(frames, halvings=0))(config).build().double()


def ctc_encoder() -> Model:
    return build("speech_ctc", **ENCODERS["speech_ctc"], vocab=VOCAB, context=FRAMES).double()


def media() -> Batch:
    """Return frames with the text that belongs to them."""
    source = torch.randn(ROWS, FRAMES, 5, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    return dataclasses.replace(plain(), source=source, source_lengths=torch.tensor([FRAMES, 88, 82, 79]))


def ctc_paths(batch: Batch) -> float:
    """Return what texts cost where every path is as likely as any: all paths, less those that collapse to the text."""
    total = 0.0
    assert batch.source_lengths is not None
    for text, frames in zip(texts_of(batch), batch.source_lengths.tolist(), strict=True):
        size, repeats = len(text) - 1, sum(a == b for a, b in pairwise(text[:-1]))
        total += frames * math.log(VOCAB + 1) - math.log(math.comb(frames + size - repeats, 2 * size))
    return total


def log_vocab(batch: Batch) -> float:
    """Return what targets cost that could be any token."""
    return batch.tokens * math.log(VOCAB)


@dataclasses.dataclass(frozen=True)
class ObjectiveCase:
    """An objective as a run has it, a model for it, what it reads, and what it promises."""

    objective: ObjectiveConfig
    model: Callable[[], Model]
    batch: Callable[[], Batch] = plain
    uniform: Callable[[Batch], float] = log_vocab  # the cost of a prepared batch for a model that knows nothing
    rebuild: Callable[[Batch], Texts] | None = None  # the texts that a prepared batch came from; None: it has no noise
    texts: Callable[[Batch], Texts] = texts_of  # what `rebuild` must give
    frozen: Callable[[], Model] | None = None  # the model that the objective reads beside: it is then in training
    show: Callable[["ObjectiveCase", Batch, int], Batch] | None = None  # a planted bug in what the model is shown
    cost: Callable[["ObjectiveCase", Model, Batch], Tensor] | None = None  # a planted bug in what that costs

    def prepare(self, batch: Batch, seed: int) -> Batch:
        """Return what the model is shown of a batch, by the way a run takes."""
        if self.show is not None:
            return self.show(dataclasses.replace(self, show=None), batch, seed)
        return self.objective.preparer(seed, lambda: TRAITS)(batch)

    def loss(self, model: Model, batch: Batch) -> Tensor:
        """Return what a prepared batch costs."""
        if self.cost is not None:
            return self.cost(dataclasses.replace(self, cost=None), model, batch)
        if self.frozen is None:
            return self.objective(model, batch).total
        return self.objective.loss_function(self.frozen())(model.train(), batch, None, None).total


# --- texts from what models are shown ---------------------------------------------------------------------------------


def unmasked(batch: Batch) -> Texts:
    """Return inputs with the targets at the places that count; padding is the second document of a row."""
    inputs = batch.inputs.where(batch.weights == 0, batch.targets)
    assert batch.documents is not None
    return [row[apart == 0].tolist() for row, apart in zip(inputs, batch.documents, strict=True)]


def unmasked_pairs(batch: Batch) -> Texts:
    """Return inputs with the targets at the places that count, up to their lengths."""
    assert isinstance(batch, SentencePairBatch) and batch.lengths is not None
    inputs = batch.inputs.where(batch.weights == 0, batch.targets)
    return [row[:length].tolist() for row, length in zip(inputs, batch.lengths.tolist(), strict=True)]


def with_coin(batch: Batch) -> float:
    """Return what targets cost that could be any token, and coins, one a row: each counts as 15 % of a row."""
    return log_vocab(batch) + round(0.15 * LENGTH) * ROWS * math.log(2)


def with_detection(batch: Batch) -> float:
    """Return what the generator's targets cost, and a coin for each token: 50 times, and 15 % count."""
    real = sum(len(text) for text in unmasked(batch))
    return log_vocab(batch) + 50 * round(0.15 * LENGTH) / LENGTH * real * math.log(2)


@functools.cache
def teacher(make: Callable[[], Model]) -> Model:
    """Return a teacher with weights of its own, larger than those of a student at its start."""
    model = make().eval().requires_grad_(False)
    draw = torch.Generator().manual_seed(11)
    for weight in model.parameters():
        weight += 0.3 * torch.randn(weight.shape, generator=draw, dtype=torch.float64)
    return model


def with_teacher(make: Callable[[], Model], batch: Any) -> float:
    """Return what targets cost that could be any token, twice; the teacher's information, and an orthogonal vector."""
    ctx = Context(documents=batch.documents)
    logits = teacher(make).logits(batch.inputs, ctx).double() / 2
    bits = math.log(VOCAB) + (logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)
    share = round(0.15 * LENGTH) / LENGTH if batch.documents is not None else 1.0
    return 2 * log_vocab(batch) + share * float(((5 * 4 * bits + 1) * batch.real).sum())


def with_reference(batch: Any) -> float:
    """Return what pairs cost a model that knows nothing, so that only lengths and the reference count."""
    targets, answers, inputs = (torch.cat(t.chunk(2, 1)) for t in (batch.targets, batch.answers, batch.inputs))
    known = teacher(language_model).logits(inputs).log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    chosen, rejected = ((-math.log(VOCAB) - known) * answers).sum(1).chunk(2)
    return float(-torch.nn.functional.logsigmoid(0.1 * (chosen - rejected)).sum())


def inputs_of(batch: Batch) -> Texts:
    return [row[weights > 0].tolist() for row, weights in zip(batch.inputs, batch.weights, strict=True)]


def filled_in(batch: Batch) -> Texts:
    """Return sources with the spans of their targets in the place of sentinels, as T5's outputs are read."""
    assert batch.source is not None
    found: Texts = []
    for source, target, weights in zip(batch.source, batch.targets, batch.weights, strict=True):
        spans: dict[int, list[int]] = {}
        current: list[int] = []
        for token in target[weights > 0].tolist()[:-1]:
            if token in SENTINELS:
                current = spans.setdefault(token, [])
            else:
                current.append(token)
        text = np.trim_zeros(np.array(source.tolist()) - END, "b") + END  # without the end tokens after it
        found.append([one for token in text.tolist() for one in spans.get(token, [token])])
    return found


def mixed(batch: Batch) -> Texts:
    """Return sources without their mode tokens, filled in."""
    assert batch.source is not None and batch.source_lengths is not None
    assert set(batch.source[:, 0].tolist()) <= set(MODES)
    real = torch.arange(batch.source.shape[1]) < batch.source_lengths[:, None]
    return filled_in(dataclasses.replace(batch, source=batch.source.where(real, END)[:, 1:]))


def continued(batch: Batch) -> Texts:
    """Return each row's inputs but the first, and its last target."""
    last = [int(weights.nonzero()[-1]) for weights in batch.weights]
    return [
        [*inputs[1 : at + 1].tolist(), int(targets[at])]
        for inputs, targets, at in zip(batch.inputs, batch.targets, last, strict=True)
    ]


def written(batch: Batch) -> Texts:
    """Return targets without the end token."""
    return [row[weights > 0].tolist()[:-1] for row, weights in zip(batch.targets, batch.weights, strict=True)]


DENOISING = DenoisingConfig(mask=MASK, end=END, start=END, source_before=(), target_before=(), controls=(END, MASK))
ALL_NOISES = (
    DocumentRotationConfig(),
    SentencePermutationConfig(share=0.5),
    TextInfillingConfig(share=0.2),
    TokenMaskingConfig(),
    TokenDeletionConfig(),
)
SPANS = SpanCorruptionConfig(sentinels=SENTINELS, end=END, start=END)
MIXED = (
    MixedObjectiveConfig(objective=SPANS, mode="r"),
    MixedObjectiveConfig(objective=replace(SPANS, mean_span=None, corruption_rate=0.25), weight=2.0, mode="s"),
    MixedObjectiveConfig(objective=replace(SPANS, corruption_rate=0.5), mode="x"),
)
MODES = (20, 21, 22)  # ids of text do here, for sources are rebuilt without their first id
MASKED = MaskedTokenConfig(mask=MASK, vocab=TEXT, never_masked=())
PAIRS_MASKED = replace(MASKED, vocab=MASK, never_masked=(END,))
CASES: dict[str, ObjectiveCase] = {
    "next_token": ObjectiveCase(NextTokenConfig(), language_model),
    "sequence": ObjectiveCase(SequenceConfig(), encoder_decoder, pairs),
    "masked_token": ObjectiveCase(MASKED, encoder, rebuild=unmasked, texts=inputs_of),
    "masked_token, whole words": ObjectiveCase(
        replace(MASKED, unit="word"), encoder, rebuild=unmasked, texts=inputs_of
    ),
    "masked_token, static": ObjectiveCase(replace(MASKED, static=10), encoder, rebuild=unmasked, texts=inputs_of),
    "span_corruption": ObjectiveCase(SPANS, encoder_decoder, rebuild=filled_in),
    "mixture": ObjectiveCase(MixtureConfig(objectives=MIXED, modes=MODES), encoder_decoder, rebuild=mixed),
    "next_sentence": ObjectiveCase(
        NextSentenceConfig(masked=PAIRS_MASKED), pair_encoder, sentence_pairs, with_coin, unmasked_pairs, inputs_of
    ),
    "sentence_order": ObjectiveCase(
        SentenceOrderConfig(masked=PAIRS_MASKED), pair_encoder, sentence_pairs, with_coin, unmasked_pairs, inputs_of
    ),
    "replaced_token": ObjectiveCase(
        ReplacedTokenConfig(masked=replace(MASKED, mask_share=0.85, random=0.0)),
        electra,
        uniform=with_detection,
        rebuild=unmasked,
        texts=inputs_of,
    ),
    "distillation": ObjectiveCase(
        DistillationConfig(),
        language_model,
        uniform=functools.partial(with_teacher, language_model),
        frozen=functools.partial(teacher, language_model),
    ),
    "distillation, masked tokens": ObjectiveCase(
        DistillationConfig(hard_targets=MASKED),
        encoder,
        uniform=functools.partial(with_teacher, encoder),
        rebuild=unmasked,
        texts=inputs_of,
        frozen=functools.partial(teacher, encoder),
    ),
    "preference": ObjectiveCase(
        PreferenceConfig(),
        language_model,
        preferences,
        uniform=with_reference,
        frozen=functools.partial(teacher, language_model),
    ),
    "prefix_lm": ObjectiveCase(PrefixLMConfig(), language_model, rebuild=continued),
    "ctc": ObjectiveCase(CtcConfig(), lambda: recognizer(ctc_encoder), media, uniform=ctc_paths),
    "ctc_attention": ObjectiveCase(
        CtcAttentionConfig(), recognizer, media, uniform=lambda batch: 0.3 * ctc_paths(batch) + 0.7 * log_vocab(batch)
    ),
    "denoising": ObjectiveCase(DENOISING, encoder_decoder, rebuild=written),
    "denoising, all noises": ObjectiveCase(replace(DENOISING, noises=ALL_NOISES), encoder_decoder, rebuild=written),
}


def tensors(batch: Batch) -> dict[str, Any]:
    """Return the tensors of a batch by name, those that there are."""
    found = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return {name: tensor for name, tensor in found.items() if tensor is not None}
