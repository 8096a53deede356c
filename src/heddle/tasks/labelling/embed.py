"""Sentence embeddings by an encoder: its embedding output, or the mean of its last layer's vectors."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from heddle.models.networks import Model
from heddle.tasks.labelling.reader import EncoderReader, encoder_reader
from heddle.text.tokenizers import Tokenizer


@dataclass(frozen=True)
class Embedder:
    """An encoder that embeds texts; `output` is the one that was trained for it, if there is one."""

    reader: EncoderReader
    output: str | None

    @classmethod
    def of(cls, model: Model, tokenizer: Tokenizer) -> "Embedder":
        """Return an embedder of an encoder."""
        reader = encoder_reader(model, tokenizer, "embed")
        found = [output.name for output in reader.model.config.outputs if output.kind == "embedding"]
        return cls(reader, found[0] if found else None)

    def run(self, texts: Sequence[str]) -> Tensor:
        """Return a vector for each text; those of a long text's windows are averaged, by their numbers of tokens."""
        rows = self.reader.rows(self.reader.tokenizer.encode_many(list(texts)))
        if self.output is None:
            found = [vectors.mean(0) for vectors in self.reader.vectors(rows, pooled=False)]
        else:
            found = self.reader.scores(self.output, rows)
        total = torch.zeros(len(texts), len(found[0]) if found else 0)
        weights = torch.zeros(len(texts), 1)
        for row, vector in zip(rows, found, strict=True):
            total[row.text] += len(row.ids) * vector
            weights[row.text] += len(row.ids)
        mean = total / weights.clamp(min=1)
        return mean if self.output is None else F.normalize(mean, dim=-1)
