"""Tagging: a tag for each word, such as named entities; the loss is that of each word's first token (Devlin 2018)."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from heddle.core import Share, part
from heddle.core.metrics import accuracy, entity_f1, macro_f1
from heddle.data.rows import Batch, check_examples
from heddle.data.shards import LabelSet, TagSet
from heddle.data.sources import LabelKind
from heddle.models.networks import Model
from heddle.nn.outputs import OutputConfig, TokenClassOutputConfig
from heddle.nn.state import State
from heddle.objectives.examples import ExampleObjective, Predictions, scores_of
from heddle.objectives.objective import Loss, add_auxiliary_losses, with_predictions


@part("tag")
class TagConfig(ExampleObjective):
    """Tagging: the tag of each word, predicted at its first token; other tokens have no loss.

    output: the output of the encoder that predicts them.
    dropout: dropout of the vectors that they are predicted from.
    smoothing: label smoothing: share of each tag's probability that is spread over all tags.
    labels: the tags; None: those of the training data.
    """

    output: str = "token_class"
    dropout: Share = 0.1
    smoothing: Share = 0.0
    labels: LabelSet | None = None

    label_kind: ClassVar[LabelKind | None] = "tags"
    verb: ClassVar[str | None] = "tag"

    @property
    def tags(self) -> tuple[str, ...]:
        """Return the tags; two before they are known."""
        return self.labels.names if isinstance(self.labels, TagSet) else ("B", "O")

    def output_config(self) -> OutputConfig:
        return TokenClassOutputConfig(classes=len(self.tags), labels=self.tags, dropout=self.dropout, name=self.output)

    def no_labels(self, rows: int) -> Tensor:
        return torch.zeros(rows, 0, dtype=torch.int64)

    def __call__(
        self, model: Model, batch: Batch, carried: State | None = None, scheduled: Tensor | None = None
    ) -> Loss:
        encoder, examples = self.checked_model(model), check_examples(batch)
        scores, output = scores_of(encoder, self.output, examples), encoder.output(self.output)
        losses = output.score_nll(scores, examples.targets, self.smoothing if model.training else 0.0)
        found = add_auxiliary_losses(encoder, (losses * examples.weights).sum(), examples)
        return found if model.training else with_predictions(found, scores.argmax(-1))

    def prediction_width(self, length: int) -> int:
        return length

    def metrics(self, predictions: Predictions, batches: Sequence[Batch]) -> dict[str, float]:
        """Return F1 over entities, as seqeval has it, or macro F1 of tags that mark none; and accuracy over words."""
        found: dict[int, list[tuple[int, int, int]]] = {}
        at = 0
        for batch in map(check_examples, batches):
            assert batch.examples is not None and batch.windows is not None
            rows = zip(batch.examples.tolist(), batch.windows.tolist(), strict=True)
            for row, (example, (start, _, place, _)) in enumerate(rows):
                words = batch.weights[row].nonzero()[:, 0].tolist()
                tags = [(w - place + start, int(predictions[at + row, w]), int(batch.targets[row, w])) for w in words]
                found.setdefault(example, []).extend(tags)
            at += len(batch)
        sentences = [sorted(words) for example, words in found.items() if example >= 0]
        mine, gold = ([[self.tags[word[n]] for word in one] for one in sentences] for n in (1, 2))
        flat, flat_gold = [tag for one in mine for tag in one], [tag for one in gold for tag in one]
        if not any(tag[:2] in ("B-", "I-") for tag in self.tags):
            return {"accuracy": accuracy(flat, flat_gold), "macro_f1": macro_f1(flat, flat_gold)}
        score = entity_f1(mine, gold)
        whole = {"entity_f1": score.f1, "entity_precision": score.precision, "entity_recall": score.recall}
        return whole | {"accuracy": accuracy(flat, flat_gold)}
