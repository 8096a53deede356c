"""Embeddings: token id -> vector (Bengio et al. 2003)."""

from abc import ABC, abstractmethod

import torch
from torch import nn
from torch.nn import functional as F

from heddle.core import Config, part
from heddle.core.shapes import Ids, Stream
from heddle.nn.part import Module, Role, check_dropout


class EmbeddingConfig(Config, ABC):
    """How ids become vectors."""

    @abstractmethod
    def build(self, vocab: int, width: int) -> Module:
        """Build the table."""


@part("full")
class FullEmbeddingConfig(EmbeddingConfig):
    """One vector of the stream's width for each id."""

    scale: float = 1.0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_dropout(self.dropout)

    def build(self, vocab: int, width: int) -> Module:
        return FullEmbedding(vocab, width, self)


class FullEmbedding(Module):
    """dropout(weight[ids] * scale)."""

    roles = {"weight": Role.EMBEDDING}

    def __init__(self, vocab: int, width: int, config: FullEmbeddingConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab, width))
        self.scale = config.scale
        self.dropout = nn.Dropout(config.dropout) if config.dropout else nn.Identity()

    def forward(self, ids: Ids) -> Stream:
        x = F.embedding(ids, self.weight)
        return self.dropout(x if self.scale == 1.0 else x * self.scale)  # type: ignore[no-any-return]
