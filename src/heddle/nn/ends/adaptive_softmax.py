"""Adaptive softmax (Grave et al. 2017) and adaptive input (Baevski & Auli 2019): narrow vectors for rare tokens."""

import math
import typing
from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.core import Config, ConfigError, Positive, part, settings
from heddle.core.shapes import Hidden, Ids, Losses, Stream, Targets
from heddle.nn.base import Context, InitialValues, Module, Place, Role, upcast
from heddle.nn.ends.embedding import Embedding, EmbeddingConfig, FactorProjection, factor_initial_values, require_vocab
from heddle.nn.ends.head import FullSoftmaxHead, Head, HeadConfig, chunked_nll, cross_entropy_from_logits, scaled
from heddle.nn.layers import DropoutConfig, ElementDropoutConfig


@settings
class ClusterConfig(Config):
    """A cluster: adjacent ids whose vectors have the same width.

    size: how many ids; None: all remaining ones.
    width: width of the vectors; None: the stream's, without a projection.
    """

    size: Positive | None = None
    width: Positive | None = None


def cluster_cutoffs(clusters: Sequence[ClusterConfig], vocab: int) -> list[int]:
    """Return the first id of each cluster and the vocabulary's size; refuse clusters that do not add up to it."""
    sizes = [cluster.size for cluster in clusters]
    rest = vocab - sum(size or 0 for size in sizes)
    if len(sizes) < 2 or sizes.count(None) > 1 or (rest < 1 if None in sizes else rest):
        want = f"two or more whose sizes add up to the vocabulary of {vocab}, of which one may be null"
        raise ConfigError("clusters", want=want, got=sizes)
    cutoffs = [0]
    for size in sizes:
        cutoffs.append(cutoffs[-1] + (rest if size is None else size))
    return cutoffs


class Cluster(Module):
    """The embedding table of one cluster, and a projection to the stream's width if it differs."""

    def __init__(self, size: int, width: int, config: ClusterConfig, role: Role, deviation: float | None) -> None:
        super().__init__()
        inner = width if config.width is None else config.width
        self.weight, self.roles = nn.Parameter(torch.empty(size, inner)), {"weight": role}
        self.map = None if config.width is None else FactorProjection(inner, width, deviation)
        if self.map is not None:
            self.initial_values = factor_initial_values(inner, deviation)
            if role is Role.HEAD and deviation is None:  # transposed, as the embedding has it
                self.map.initial_values = {"weight": InitialValues(scale=width**-0.5)}
        elif deviation is not None:
            self.initial_values = {"weight": InitialValues(scale=deviation)}

    def embed(self, ids: Ids, in_cluster: Tensor) -> Stream:
        """Return the vectors of the ids of this cluster, zeros for the others."""
        x = F.embedding(ids, self.weight) * in_cluster[..., None]
        return x if self.map is None else self.map(x)

    def scores(self, hidden: Hidden) -> Float[Tensor, "... size"]:
        """Return a score for each id of the cluster."""
        narrow = hidden if self.map is None else self.map.back(hidden)
        return F.linear(narrow, self.weight.to(hidden.dtype))


class Clusters(nn.ModuleList):
    """The clusters of a vocabulary; `cutoffs` are their first ids and its size."""

    def __init__(
        self, clusters: Sequence[ClusterConfig], cutoffs: list[int], width: int, role: Role, deviation: float | None
    ) -> None:
        sizes = [stop - start for start, stop in pairwise(cutoffs)]
        each = zip(sizes, clusters, strict=True)
        super().__init__(Cluster(size, width, config, role, deviation) for size, config in each)

    def in_order(self) -> list[Cluster]:
        """Return the clusters in order."""
        return typing.cast(list[Cluster], list(self))


# --- input ------------------------------------------------------------------------------------------------------------


@part("adaptive")
class AdaptiveEmbeddingConfig(EmbeddingConfig):
    """Adaptive input: a table for each cluster of ids, narrower for rarer ones (Baevski & Auli 2019).

    clusters: the clusters of ids, the most frequent first.
    deviation: standard deviation of the initial vectors; None: the initializer's, for each matrix.
    dropout: dropout of the embedded tokens.
    """

    clusters: tuple[ClusterConfig, ...]
    deviation: float | None = None
    dropout: DropoutConfig = ElementDropoutConfig()

    def build(self, vocab: int | None, width: int, place: Place) -> Embedding:
        return AdaptiveEmbedding(require_vocab(vocab), width, self)


class AdaptiveEmbedding(Embedding):
    """dropout(map[c] · weight[c][id - first[c]]), c being the cluster of the id."""

    def __init__(self, vocab: int, width: int, config: AdaptiveEmbeddingConfig) -> None:
        super().__init__()
        self.cutoffs = cluster_cutoffs(config.clusters, vocab)
        self.clusters = Clusters(config.clusters, self.cutoffs, width, Role.EMBEDDING, config.deviation)
        self.dropout = config.dropout.build()

    def forward(self, inputs: Ids, ctx: Context) -> Stream:
        parts = []
        for i, cluster in enumerate(self.clusters.in_order()):
            first, stop = self.cutoffs[i : i + 2]
            # an id past the vocabulary is not clamped into the last cluster, so that its table refuses it
            last = stop == self.cutoffs[-1]
            in_cluster = inputs >= first if last else (inputs >= first) & (inputs < stop)
            here = (inputs - first).clamp(min=0, max=None if last else stop - first - 1)
            parts.append(cluster.embed(here, in_cluster))
        return self.dropout(sum(parts))  # type: ignore[no-any-return]


# --- output -----------------------------------------------------------------------------------------------------------


@part("clustered")
class ClusteredHeadConfig(HeadConfig):
    """One softmax over the logits of all clusters: the transpose of an adaptive input.

    clusters: the clusters of ids, the most frequent first.
    power: the hidden state is first multiplied by width^power.
    deviation: standard deviation of the initial vectors; None: the initializer's.
    """

    clusters: tuple[ClusterConfig, ...]
    power: float = 0.0
    deviation: float | None = None

    def build(self, vocab: int, width: int) -> Head:
        return ClusteredHead(vocab, width, self)


class ClusteredHead(FullSoftmaxHead):
    """softmax over all clusters of weight[c] · (hidden · map[c])."""

    def __init__(self, vocab: int, width: int, config: ClusteredHeadConfig) -> None:
        super().__init__()
        self.vocab, self.scale = vocab, width**config.power
        cutoffs = cluster_cutoffs(config.clusters, vocab)
        self.clusters = Clusters(config.clusters, cutoffs, width, Role.HEAD, config.deviation)

    def logits(self, hidden: Hidden) -> Float[Tensor, "... vocab"]:
        hidden = scaled(hidden, self.scale)
        return torch.cat([cluster.scores(hidden) for cluster in self.clusters.in_order()], dim=-1)


@part("adaptive")
class AdaptiveHeadConfig(HeadConfig):
    """Adaptive softmax: over frequent tokens and clusters of rare ones, then within the cluster (Grave 2017).

    clusters: the clusters of ids, the most frequent first.
    power: the hidden state is first multiplied by width^power.
    deviation: standard deviation of the initial vectors; None: the initializer's.
    share: largest share of a row's targets that each tail learns from; None: all of its own.
    """

    clusters: tuple[ClusterConfig, ...]
    power: float = 0.0
    deviation: float | None = None
    share: float | None = None

    def __post_init__(self) -> None:
        if self.share is not None and not 0 < self.share <= 1:
            raise ConfigError("share", want="above 0 and at most 1, or null for all", got=self.share)

    def build(self, vocab: int, width: int) -> Head:
        return AdaptiveHead(vocab, width, self)


class AdaptiveHead(Head):
    """p(token) = p(token | first softmax), or p(cluster | first softmax) * p(token | cluster).

    In training a target is scored in its own cluster only, so that a rare cluster costs little. With a `share`, a
    row's targets beyond it count for the choice of their cluster only, as in the code of Narang et al. (2021).
    """

    single_softmax = False  # zero logits are uniform over frequent tokens and clusters, then within each
    roles = {"tails": Role.HEAD}

    def __init__(self, vocab: int, width: int, config: AdaptiveHeadConfig) -> None:
        super().__init__()
        self.vocab, self.scale, self.target_share = vocab, width**config.power, config.share
        self.cutoffs = cluster_cutoffs(config.clusters, vocab)
        self.clusters = Clusters(config.clusters, self.cutoffs, width, Role.HEAD, config.deviation)
        self.tails = nn.Parameter(torch.empty(len(config.clusters) - 1, width))  # a logit for each rare cluster
        if config.deviation is not None:
            self.initial_values = {"tails": InitialValues(scale=config.deviation)}

    def shortlist(self, hidden: Hidden) -> Tensor:
        """Return the logits of the frequent tokens, then of the clusters."""
        frequent = self.clusters.in_order()[0].scores(hidden)
        return torch.cat((frequent, F.linear(hidden, self.tails.to(hidden.dtype))), dim=-1)

    def logits(self, hidden: Hidden) -> Float[Tensor, "... vocab"]:
        hidden = scaled(hidden, self.scale)
        shortlist = upcast(self.shortlist(hidden)).log_softmax(-1)
        tokens, tails = shortlist.split((self.cutoffs[1], len(self.tails)), dim=-1)
        parts = [tokens]
        for i, cluster in enumerate(self.clusters.in_order()[1:]):
            parts.append(tails[..., i : i + 1] + upcast(cluster.scores(hidden)).log_softmax(-1))
        return torch.cat(parts, dim=-1).to(hidden.dtype)

    def nll(self, hidden: Hidden, targets: Targets, smoothing: float = 0.0) -> Losses:
        if smoothing:  # needs the logits of all tokens
            return cross_entropy_from_logits(self, hidden, targets, smoothing, self.vocab)
        hidden = scaled(hidden, self.scale)
        which = sum(((targets >= edge).long() for edge in self.cutoffs[1:-1]), torch.zeros_like(targets))
        shortlist = targets.where(which == 0, self.cutoffs[1] + which - 1)
        loss = chunked_nll(
            lambda v, w: _cross_entropy(self.shortlist(v), w), hidden, shortlist, self.cutoffs[1] + len(self.tails)
        )
        for i in range(1, len(self.clusters)):
            loss = loss + self._tail_nll(i, hidden, targets, which == i)
        return loss

    def _tail_nll(self, i: int, hidden: Tensor, targets: Tensor, in_cluster: Tensor) -> Tensor:
        """Return the loss within a cluster for its own targets, zero for the others."""
        cluster, (first, stop) = self.clusters.in_order()[i], self.cutoffs[i : i + 2]
        within, vectors = (targets - first).clamp(0, stop - first - 1), hidden

        def nll(v: Tensor, w: Tensor) -> Tensor:
            return chunked_nll(lambda a, b: _cross_entropy(cluster.scores(a), b), v, w, stop - first)

        if self.target_share is not None and self.training and targets.dim() > 1:
            places = _first_positions(in_cluster, math.ceil(self.target_share * targets.shape[-1]))
            vectors = vectors.take_along_dim(places[..., None], dim=-2)
            losses = nll(vectors, within.gather(-1, places)) * in_cluster.gather(-1, places)
            return torch.zeros(targets.shape, dtype=losses.dtype, device=losses.device).scatter(-1, places, losses)
        if torch.compiler.is_compiling() or hidden.is_meta:  # shapes must not depend on the data
            return nll(hidden, within) * in_cluster
        rows = in_cluster.flatten().nonzero()[:, 0]
        losses = nll(vectors.reshape(-1, vectors.shape[-1])[rows], within.flatten()[rows])
        return losses.new_zeros(targets.numel()).index_add(0, rows, losses).view_as(targets)


def _cross_entropy(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(upcast(scores), targets, reduction="none")


def _first_positions(in_cluster: Tensor, count: int) -> Tensor:
    """Return the positions of each row's first targets in a cluster, then of others, up to `count`."""
    order = torch.arange(in_cluster.shape[-1], 0, -1, device=in_cluster.device)
    return (in_cluster * (in_cluster.shape[-1] + 1) + order).topk(count, dim=-1).indices
