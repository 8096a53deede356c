"""kNN-LM (Khandelwal et al. 2020): a head that mixes a model's distribution with that of its nearest neighbours.

p(token) = weight * p_kNN(token) + (1 - weight) * p_LM(token), where p_kNN sums exp(-distance / temperature) over the
neighbours that the token followed. The model is unchanged; whatever reads its head, from scoring to beam search, reads
the mixture.
"""

import copy
import math
from typing import Annotated

import torch
from torch import Tensor

from heddle.core import Config, ConfigError, Positive, UsageError, settings, within
from heddle.core.shapes import Float, Hidden, Losses, Targets
from heddle.decoding.knn.datastore import Datastore, weights_hash
from heddle.decoding.knn.search import Neighbours, NeighbourSearch
from heddle.models.networks import LanguageModel
from heddle.nn.base import upcast
from heddle.nn.ends import Head

CHUNK = 1 << 9  # positions whose logits of the whole vocabulary exist at once
TEMPERATURE = 0.05  # of the keys' spread, where none is given
Mixing = Annotated[float, within("at least 0 and below 1", lambda weight: 0 <= weight < 1)]
Above = Annotated[float, within("above 0", lambda number: 0 < number < math.inf)]


@settings
class KnnConfig(Config):
    """How neighbours are mixed in.

    weight: of the neighbours' distribution (the paper's lambda).
    k: how many neighbours.
    temperature: a distance of so much lowers a neighbour's share by the factor e; None: from the spread of the keys.
    """

    weight: Mixing = 0.25
    k: Positive = 64
    temperature: Above | None = None


class KnnHead(Head):
    """log((1 - weight) * softmax(head) + weight * p_kNN)."""

    single_softmax = False
    compilable = False
    capturable = False
    in_checkpoints = False

    def __init__(self, head: Head, datastore: Datastore, search: NeighbourSearch, config: KnnConfig) -> None:
        super().__init__()
        self.head, self.search, self.config = head, search, config
        self.values = torch.from_numpy(datastore.values).to(search.device)  # on a CPU still the memory map
        scale = TEMPERATURE * datastore.record.spread or 1.0
        self.temperature = scale if config.temperature is None else config.temperature

    def vectors(self, hidden: Hidden) -> Float[Tensor, "... _"]:
        return self.head.vectors(hidden)

    def logits(self, hidden: Hidden) -> Float[Tensor, "... vocab"]:
        rows = [self._logprobs(some) for some in hidden.reshape(-1, hidden.shape[-1]).split(CHUNK)]
        return torch.cat(rows).unflatten(0, hidden.shape[:-1]) if rows else self.head.logits(hidden)

    def nll(self, hidden: Hidden, targets: Targets, smoothing: float = 0.0) -> Losses:
        if smoothing:
            raise UsageError("smoothing: want 0, because a memory is not trained")
        own = torch.exp(-upcast(self.head.nll(hidden, targets)).double()).flatten()
        tokens, shares = self.weigh(self.search.nearest(hidden.reshape(-1, hidden.shape[-1]), self.config.k))
        near = (shares * (tokens == targets.reshape(-1, 1))).sum(1)
        losses = -self._mix(own, near, shares.sum(1)).log()
        return losses.view_as(targets).to(torch.promote_types(hidden.dtype, torch.float32))

    def _logprobs(self, hidden: Float[Tensor, "rows width"]) -> Float[Tensor, "rows vocab"]:
        own = upcast(self.head.logits(hidden)).double().softmax(-1)
        tokens, shares = self.weigh(self.search.nearest(hidden, self.config.k))
        near = torch.zeros_like(own).scatter_add_(1, tokens, shares)
        mixed = self._mix(own, near, shares.sum(1, keepdim=True))
        return mixed.log().to(torch.promote_types(hidden.dtype, torch.float32))

    def _mix(self, own: Tensor, near: Tensor, found: Tensor) -> Tensor:
        """Return the mixture; where no neighbour was found (an index may miss all), the model's own distribution."""
        weight = self.config.weight
        return ((1 - weight) * own + weight * near) / (1 - weight + weight * found)

    def weigh(self, near: Neighbours) -> tuple[Tensor, Tensor]:
        """Return the token of each neighbour and its share, in float64."""
        return self.values[near.entries.clamp(min=0)].long(), neighbour_weights(near, self.temperature)


def neighbour_weights(near: Neighbours, temperature: float) -> Float[Tensor, "queries k"]:
    """Return each neighbour's share: the softmax of -distance / temperature; 0 where there is no entry."""
    return (-near.distances / temperature).softmax(-1).nan_to_num(0.0)


def with_knn(model: LanguageModel, datastore: Datastore, search: NeighbourSearch, config: KnnConfig) -> LanguageModel:
    """Return a model with the same weights whose head mixes in the neighbours; the given one stays as it is."""
    check_model(model, datastore)
    made = copy.copy(model)
    made._modules = dict(model._modules)
    made.head = KnnHead(model.head, datastore, search, config)
    return made


def check_model(model: LanguageModel, datastore: Datastore) -> None:
    """Refuse a datastore of another model, and a second memory."""
    if isinstance(model.head, KnnHead):
        raise UsageError("memory: the model has one already; want one memory for a model")
    record = datastore.record
    if (record.width, record.vocab) != (model.config.width, model.vocab) or record.model != weights_hash(model):
        raise ConfigError("memory", f"{datastore.folder} was built by another model; its keys mean nothing to this one")
