"""Retrieval by embeddings: the texts whose vectors, by a model of one's own, have the largest cosine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from heddle.core import ConfigError
from heddle.tasks.retrieval.index import Retriever, Scores

BATCH = 256  # texts embedded at once
AGREE = 1e-3  # by which a text's vector may differ when it is made again, on another device, say

Vectors = NDArray[np.float32]
Embed = Callable[[Sequence[str]], Tensor]


@dataclass(frozen=True)
class EmbeddingRetriever(Retriever):
    """score = cosine(embed(query), embed(text))."""

    vectors: Vectors  # of the texts, of length 1
    embed: Embed

    kind = "embeddings"
    floor = -np.inf

    @classmethod
    def build(cls, texts: Sequence[str], embed: Embed) -> "EmbeddingRetriever":
        """Embed some texts."""
        return cls(unit_vectors(texts, embed), embed)

    def check(self, text: str) -> "EmbeddingRetriever":
        """Return the retriever of a saved index, or refuse a model that embeds its first text otherwise."""
        again = unit_vectors([text], self.embed)[0]
        if again.shape != self.vectors.shape[1:] or np.abs(again - self.vectors[0]).max() > AGREE:
            raise ConfigError("by", want="the model that embedded the texts of this index", got="another one")
        return self

    def scores(self, queries: Sequence[str]) -> Scores:
        return unit_vectors(queries, self.embed) @ self.vectors.T

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        return {"vectors": self.vectors}


def unit_vectors(texts: Sequence[str], embed: Embed) -> Vectors:
    """Return the embedding of each text, of length 1."""
    rows = [embed(texts[at : at + BATCH]).float().cpu().numpy() for at in range(0, len(texts), BATCH)]
    vectors: Vectors = np.concatenate(rows)
    lengths: Vectors = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors /= np.maximum(lengths, 1e-30)
    return vectors
