"""Embeddings: token id -> vector (Bengio et al. 2003)."""

from abc import ABC, abstractmethod

import torch
from torch import nn
from torch.nn import functional as F

from heddle.core import Config, part
from heddle.core.shapes import Ids, Stream
from heddle.nn.dropout import DropoutConfig, EachDropoutConfig
from heddle.nn.part import Context, Module, Role


class EmbeddingConfig(Config, ABC):
    """How ids become vectors."""

    @abstractmethod
    def build(self, vocab: int, width: int) -> "Embedding":
        """Build the table."""


class Embedding(Module, ABC):
    """A module `(ids, ctx) -> x`."""

    @abstractmethod
    def forward(self, ids: Ids, ctx: Context) -> Stream:
        """Return a vector for each id."""


@part("full")
class FullEmbeddingConfig(EmbeddingConfig):
    """One vector of the stream's width for each id."""

    scale: float = 1.0
    dropout: DropoutConfig = EachDropoutConfig()

    def build(self, vocab: int, width: int) -> Embedding:
        return FullEmbedding(vocab, width, self)


class FullEmbedding(Embedding):
    """dropout(weight[ids] * scale)."""

    roles = {"weight": Role.EMBEDDING}

    def __init__(self, vocab: int, width: int, config: FullEmbeddingConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab, width))
        self.scale = config.scale
        self.dropout = config.dropout.build()

    def forward(self, ids: Ids, ctx: Context) -> Stream:
        x = F.embedding(ids, self.weight)
        return self.dropout(x if self.scale == 1.0 else x * self.scale)  # type: ignore[no-any-return]
