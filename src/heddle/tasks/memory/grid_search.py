"""Choosing weight, temperature and number of neighbours of a kNN-LM: one search, then the loss of every combination."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heddle.core import Config, Count, DataError, Positive, bounded_exp, settings
from heddle.data.shards import Shards
from heddle.decoding.knn import ExactSearch, KnnConfig, Neighbours, check_model, neighbour_weights
from heddle.decoding.runtime import device_of
from heddle.decoding.scoring import scoring_windows
from heddle.models.networks import LanguageModel
from heddle.tasks.memory.knn_lm import open_memory
from heddle.tasks.scoring import Counts, documents_of, token_nll
from heddle.text.tokenizers import Tokenizer

WEIGHTS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # of the spread of the keys: temperatures
COUNTS = (4, 16, 64, 256)


@settings
class MemoryGrid(Config):
    """What is tried: every combination of weights, temperatures as shares of the keys' spread, and numbers."""

    weights: tuple[float, ...] = WEIGHTS
    shares: tuple[float, ...] = SHARES
    counts: tuple[Positive, ...] = COUNTS
    tokens: Count = 20_000  # of the text, about so many; 0: all


@dataclass(frozen=True)
class TunedMemory:
    """The best combination on a text, its loss, and that of the model alone, in nats per token."""

    mix: KnnConfig
    loss: float
    loss_alone: float
    tokens: int

    def plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        perplexities = {"perplexity": bounded_exp(self.loss), "perplexity_alone": bounded_exp(self.loss_alone)}
        chosen = {name: vars(self.mix)[name] for name in ("weight", "k", "temperature")}
        return {**chosen, "loss": self.loss, "loss_alone": self.loss_alone, **perplexities, "tokens": self.tokens}


def tune_memory(
    model: LanguageModel,
    tokenizer: Tokenizer,
    texts: Iterable[str] | Shards,
    folder: str | Path,
    grid: MemoryGrid | None = None,
) -> TunedMemory:
    """Return the combination of lowest loss on texts, which should be neither trained nor tested on."""
    grid = MemoryGrid() if grid is None else grid
    datastore = open_memory(tokenizer, folder)
    check_model(model, datastore)
    values = torch.from_numpy(datastore.values)
    losses = _GridLosses.of(grid, datastore.record.spread or 1.0)
    search, deepest = ExactSearch(datastore.keys, device_of(model)), max(grid.counts)

    def measure(vectors: Tensor, targets: Tensor) -> Tensor:
        own = model.head.nll(vectors, targets)
        near = search.nearest(vectors, deepest)
        losses.add(own, near, values[near.entries.clamp(min=0).cpu()].to(targets.device) == targets[:, None])
        return own

    documents = documents_of(texts, tokenizer, Counts())
    for _ in token_nll(model, tokenizer, _some(documents, grid.tokens), scoring_windows(model), measure):
        pass
    return losses.best()


def _some(documents: Iterable[Any], tokens: int) -> Iterable[Any]:
    """Yield documents up to about so many tokens; the last is cut."""
    left = tokens
    for ids in documents:
        yield ids[:left] if tokens else ids
        left -= len(ids)
        if tokens and left <= 0:
            return


@dataclass
class _GridLosses:
    """The summed loss of every combination."""

    settings: list[tuple[int, float, float]]  # k, temperature, weight
    totals: Tensor
    alone: float = 0.0
    tokens: int = 0
    weights: tuple[float, ...] = field(default=())

    @classmethod
    def of(cls, grid: MemoryGrid, spread: float) -> "_GridLosses":
        temperatures = [share * spread for share in grid.shares]
        every = list(itertools.product(grid.counts, temperatures, grid.weights))
        return cls(every, torch.zeros(len(every), dtype=torch.float64), weights=grid.weights)

    def add(self, own: Tensor, near: Neighbours, match: Tensor) -> None:
        """Add some tokens: their losses under the model alone, their neighbours, and which of those have the token."""
        likely, weight = torch.exp(-own.double()), own.new_tensor(self.weights, dtype=torch.float64)[:, None]
        for start in range(0, len(self.settings), len(self.weights)):
            k, temperature, _ = self.settings[start]
            shares = neighbour_weights(Neighbours(near.distances[:, :k], near.entries[:, :k]), temperature)
            found = (shares * match[:, :k]).sum(1)
            losses = -((1 - weight) * likely + weight * found).log().sum(1)
            self.totals[start : start + len(self.weights)] += losses.cpu()
        self.alone += float(own.double().sum())
        self.tokens += len(own)

    def best(self) -> TunedMemory:
        """Return the combination of lowest loss."""
        if not self.tokens:
            raise DataError("memory: want one document or more to choose on, got none")
        number = int(self.totals.argmin())
        k, temperature, weight = self.settings[number]
        mix = KnnConfig(weight=weight, k=k, temperature=temperature)
        return TunedMemory(mix, float(self.totals[number]) / self.tokens, self.alone / self.tokens, self.tokens)
