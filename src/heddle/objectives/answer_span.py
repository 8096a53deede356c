"""Extractive question answering: first and last token of the answer in a context (Rajpurkar 2016; Devlin 2018).

A question that its context does not answer has its answer at the first token of the row (SQuAD 2.0).
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from heddle.core import Positive, Share, part
from heddle.data.rows import Batch, check_examples
from heddle.data.shards import AnswerSet, LabelSet
from heddle.data.sources import LabelKind
from heddle.models.networks import Model
from heddle.nn.outputs import OutputConfig, SpanOutputConfig, best_spans
from heddle.nn.state import State
from heddle.objectives.examples import ExampleObjective, Predictions, scores_of
from heddle.objectives.objective import Loss, add_auxiliary_losses, with_predictions

Span = tuple[int, int]


@part("span")
class SpanConfig(ExampleObjective):
    """Extractive question answering: where in the context the answer begins and ends, or that there is none.

    output: the output of the encoder that predicts it.
    dropout: dropout of the vectors that it is predicted from.
    longest: most tokens of an answer.
    labels: what is known of the answers of the training data; None: not yet.
    """

    output: str = "span"
    dropout: Share = 0.1
    longest: Positive = 30
    labels: LabelSet | None = None

    label_kind: ClassVar[LabelKind | None] = "answers"
    verb: ClassVar[str | None] = "answer"

    def output_config(self) -> OutputConfig:
        return SpanOutputConfig(dropout=self.dropout, name=self.output)

    def with_labels(self, labels: LabelSet) -> "SpanConfig":
        assert isinstance(labels, AnswerSet)
        return self  # answers have no names

    def no_labels(self, rows: int) -> Tensor:
        return torch.zeros(rows, 2, dtype=torch.int64)

    def __call__(
        self, model: Model, batch: Batch, carried: State | None = None, scheduled: Tensor | None = None
    ) -> Loss:
        encoder, examples = self.checked_model(model), check_examples(batch)
        assert examples.labels is not None
        scores = scores_of(encoder, self.output, examples)
        losses = encoder.output(self.output).score_nll(scores, examples.labels)
        found = add_auxiliary_losses(encoder, (losses * examples.weights[:, 0]).sum(), examples)
        if model.training or examples.windows is None:
            return found
        start, stop, place, _ = examples.windows.unbind(1)
        places = torch.arange(scores.shape[2], device=scores.device)
        inside = (places >= place[:, None]) & (places < (place + stop - start)[:, None])
        first, last, score = best_spans(scores, inside, self.longest)
        shift = start - place
        none = scores[:, :, 0].sum(1)
        return with_predictions(found, torch.stack([first + shift, last + shift, score, none], dim=1))

    def prediction_width(self, length: int) -> int:
        return 4

    def metrics(self, predictions: Predictions, batches: Sequence[Batch]) -> dict[str, float]:
        """Return F1 over tokens and exact match of the best span of all windows, over questions.

        The first answer of the data is the right one; `heddle answer --reference` grades by SQuAD's own rules.
        """
        found: dict[int, tuple[float, Span | None, float]] = {}
        gold: dict[int, Span | None] = {}
        at = 0
        for batch in map(check_examples, batches):
            assert batch.examples is not None and batch.windows is not None and batch.labels is not None
            for row, example in enumerate(batch.examples.tolist()):
                first, last, score, none = predictions[at + row].tolist()
                best, span, least = found.get(example, (-float("inf"), None, float("inf")))
                span = (int(first), int(last)) if score > best else span
                found[example] = max(best, score), span, min(least, none)
                shift = int(batch.windows[row, 0] - batch.windows[row, 2])
                edges = [int(edge) + shift for edge in batch.labels[row]]
                known = (edges[0], edges[1]) if int(batch.labels[row, 0]) else None
                gold[example] = known if gold.get(example) is None else gold[example]
            at += len(batch)
        pairs = [(s if best > least else None, gold[n]) for n, (best, s, least) in found.items() if n >= 0]
        scores = [_overlap(mine, theirs) for mine, theirs in pairs]
        exact = sum(mine == theirs for mine, theirs in pairs)
        return {"span_f1": sum(scores) / max(1, len(pairs)), "exact_match": exact / max(1, len(pairs))}


def _overlap(mine: Span | None, gold: Span | None) -> float:
    """Return F1 over tokens."""
    if mine is None or gold is None:
        return float(mine == gold)
    shared = max(0, min(mine[1], gold[1]) - max(mine[0], gold[0]) + 1)
    return 2 * shared / (mine[1] - mine[0] + gold[1] - gold[0] + 2)
