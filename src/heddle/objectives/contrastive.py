"""Contrastive sentence embeddings: two dropout passes of a text are a pair, within a batch (SimCSE, Gao 2021)."""

from typing import Annotated, ClassVar

import torch
from torch import Tensor

from heddle.core import ConfigError, fields_of, find, part, within
from heddle.data.rows import Batch, check_examples
from heddle.data.shards import LabelSet
from heddle.models.networks import Encoder, Model
from heddle.nn.attention import AttentionConfig
from heddle.nn.layers import DropoutConfig
from heddle.nn.outputs import EmbeddingOutput, EmbeddingOutputConfig, OutputConfig
from heddle.nn.state import State
from heddle.objectives.examples import ExampleObjective, run_examples
from heddle.objectives.objective import Loss, add_auxiliary_losses


@part("contrastive")
class ContrastiveConfig(ExampleObjective):
    """Contrastive sentence embeddings (SimCSE): a text is read twice, with other dropout; its two vectors are a pair.

    The other texts of the batch are what it is told apart from, so the batch is the unit: it cannot be divided into
    micro-batches or among processes.

    output: the output of the encoder that gives the embeddings.
    temperature: similarities are divided by it.
    labels: not used.
    """

    output: str = "embedding"
    temperature: Annotated[float, within("above 0", lambda temperature: temperature > 0)] = 0.05
    labels: LabelSet | None = None

    verb: ClassVar[str | None] = "embed"
    batch_is_unit: ClassVar[bool] = True

    def output_config(self) -> OutputConfig:
        return EmbeddingOutputConfig(name=self.output, temperature=self.temperature)

    def with_labels(self, labels: LabelSet) -> "ContrastiveConfig":
        return self

    def checked_model(self, model: Model) -> Encoder:
        encoder = super().checked_model(model)
        dropped = any(fields_of(one)["rate"] > 0 for one in find(encoder.config, DropoutConfig))
        if not dropped and not any(one.dropout > 0 for one in find(encoder.config, AttentionConfig)):
            raise ConfigError("model.dropout", want="above 0, because two passes must differ", got=0.0)
        return encoder

    def no_labels(self, rows: int) -> Tensor:
        return torch.zeros(rows, 0, dtype=torch.int64)

    def __call__(
        self, model: Model, batch: Batch, carried: State | None = None, scheduled: Tensor | None = None
    ) -> Loss:
        encoder, examples = super().checked_model(model), check_examples(batch)
        output = encoder.output(self.output)
        assert isinstance(output, EmbeddingOutput)
        first, second = (encoder.pool(*run_examples(encoder, examples)) for _ in range(2))
        losses = output.pair_nll(first, second, examples.weights[:, 0] > 0)
        return add_auxiliary_losses(encoder, losses.sum(), examples)
