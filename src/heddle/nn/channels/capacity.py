"""Expert capacity: how many tokens an expert takes (Lepikhin et al. 2020; Fedus et al. 2021; Gale et al. 2022)."""

from abc import ABC, abstractmethod
from typing import Annotated, ClassVar

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F

from heddle.core import Config, Positive, part, within


class CapacityConfig(Config, ABC):
    """How many tokens an expert takes in training; the residual alone passes tokens beyond its capacity."""

    depends_on_batch: ClassVar[bool] = True  # whether a token may be dropped because of others in its micro-batch
    in_eval: ClassVar[bool] = False  # whether it also holds in evaluation, where a model sees whole documents

    @abstractmethod
    def groups(self, tokens: int) -> int:
        """Return how many groups a number of tokens is divided into; capacity is counted in each group."""

    @abstractmethod
    def expert_capacity(self, size: int, experts: int) -> int:
        """Return the tokens that an expert takes of a group of this size."""

    def drop_overflow(
        self, experts: Int[Tensor, "*rows choices"], count: int, documents: Int[Tensor, "*rows"] | None = None
    ) -> Int[Tensor, "*rows choices"]:
        """Drop tokens beyond the capacity of their expert: first choices come first, then earlier tokens."""
        choices, tokens = experts.shape[-1], experts.shape[:-1].numel()
        groups = self.groups(tokens)
        size = -(-tokens // groups)
        padded = F.pad(experts.reshape(-1, choices), (0, 0, 0, groups * size - tokens), value=count)
        queue = padded.view(groups, size, choices).transpose(1, 2).flatten(1)
        one_hot = F.one_hot(queue, count + 1)
        ahead = (one_hot.cumsum(dim=1) * one_hot).sum(-1) - 1  # how many before it in the queue want the same expert
        admitted = queue.where(ahead < self.expert_capacity(size, count), count)
        return admitted.view(groups, choices, size).transpose(1, 2).reshape(-1, choices)[:tokens].view_as(experts)


@part("dropless")
class DroplessConfig(CapacityConfig):
    """Dropless: experts take all tokens that are sent to them (Gale et al. 2022)."""

    depends_on_batch = False

    def groups(self, tokens: int) -> int:
        return 1

    def expert_capacity(self, size: int, experts: int) -> int:
        return size

    def drop_overflow(
        self, experts: Int[Tensor, "*rows choices"], count: int, documents: Int[Tensor, "*rows"] | None = None
    ) -> Int[Tensor, "*rows choices"]:
        return experts


CapacityFactor = Annotated[float, within("above 0", lambda factor: factor > 0)]


@part("factor")
class FactorConfig(CapacityConfig):
    """Capacity factor: a multiple of the even share of a group of tokens (Lepikhin et al. 2020; Fedus et al. 2021).

    factor: how many times the even share an expert may take.
    group: tokens that share the places; the last group may be smaller.
    min_capacity: fewest tokens that each expert has places for.
    """

    old_fields = {"least": "min_capacity"}

    factor: CapacityFactor = 1.25
    group: Positive = 1024
    min_capacity: Positive = 4

    def groups(self, tokens: int) -> int:
        return max(1, -(-tokens // self.group))

    def expert_capacity(self, size: int, experts: int) -> int:
        return max(self.min_capacity, int(size * self.factor / experts))


@part("narang_factor")
class NarangFactorConfig(CapacityConfig):
    """Capacity factor over equal groups, a multiple of the number of chips, as Narang et al. (2021) ran it.

    factor: how many times the even share an expert may take.
    group: most tokens that share the places.
    min_capacity: fewest tokens that each expert has places for.
    multiple: the number of groups is a multiple of it.
    """

    old_fields = {"least": "min_capacity"}

    factor: CapacityFactor = 1.25
    group: Positive = 1024
    min_capacity: Positive = 4
    multiple: Positive = 8

    def groups(self, tokens: int) -> int:
        fewest = max(1, -(-tokens // self.group))
        least = -(-fewest // self.multiple) * self.multiple
        for groups in range(least, 2 * least + 1, self.multiple):
            if tokens % groups == 0:
                return groups
        return fewest  # no such division exists

    def expert_capacity(self, size: int, experts: int) -> int:
        return max(self.min_capacity, int(size * self.factor / experts))


@part("per_document", was="row_places")
class PerDocumentCapacityConfig(CapacityConfig):
    """A fixed capacity for each document, whatever its length: Switch as Hugging Face transformers runs it.

    An encoder applies it in evaluation too. A decoder does not, since its output must not depend on how many tokens are
    read at once.

    max_capacity: tokens of a document that each expert may take.
    """

    old_fields = {"most": "max_capacity"}

    depends_on_batch = False
    in_eval = True

    max_capacity: Positive = 64

    def groups(self, tokens: int) -> int:
        return 1

    def expert_capacity(self, size: int, experts: int) -> int:
        return min(self.max_capacity, size)

    def drop_overflow(
        self, experts: Int[Tensor, "*rows choices"], count: int, documents: Int[Tensor, "*rows"] | None = None
    ) -> Int[Tensor, "*rows choices"]:
        keys = experts if documents is None else experts + documents[..., None] * (count + 1)
        sorted_keys, order = keys.transpose(-1, -2).flatten(-2).sort(stable=True)
        first = torch.searchsorted(sorted_keys, sorted_keys)  # first of those that want the same expert
        ahead = torch.empty_like(order).scatter(-1, order, torch.arange(order.shape[-1], device=order.device) - first)
        full = ahead.unflatten(-1, experts.mT.shape[-2:]).mT >= self.max_capacity
        return experts.masked_fill(full, count)
