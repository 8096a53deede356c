"""Capacity: how many tokens an expert takes (Lepikhin et al. 2020; Fedus et al. 2021; Gale et al. 2022)."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F

from heddle.core import Config, ConfigError, check_at_least, part


class CapacityConfig(Config, ABC):
    """How many tokens an expert takes in training; what finds no place goes by the residual alone."""

    depends_on_batch: ClassVar[bool] = True  # whether a token's fate depends on others of its micro-batch
    in_eval: ClassVar[bool] = False  # whether it holds in use too, where a document is read at once: with sight of all

    @abstractmethod
    def groups(self, tokens: int) -> int:
        """Return into how many groups so many tokens are cut; each group has its own places."""

    @abstractmethod
    def expert_capacity(self, size: int, experts: int) -> int:
        """Return the places of an expert in a group of this size."""

    def drop_overflow(
        self, experts: Int[Tensor, "*rows choices"], count: int, documents: Int[Tensor, "*rows"] | None = None
    ) -> Int[Tensor, "*rows choices"]:
        """Send nowhere what finds its expert full: first choices come first, then earlier tokens."""
        choices, tokens = experts.shape[-1], experts.shape[:-1].numel()
        groups = self.groups(tokens)
        size = -(-tokens // groups)
        padded = F.pad(experts.reshape(-1, choices), (0, 0, 0, groups * size - tokens), value=count)
        queue = padded.view(groups, size, choices).transpose(1, 2).flatten(1)
        wanted = F.one_hot(queue, count + 1)
        ahead = (wanted.cumsum(dim=1) * wanted).sum(-1) - 1  # how many in the queue want the same expert
        admitted = queue.where(ahead < self.expert_capacity(size, count), count)
        return admitted.view(groups, choices, size).transpose(1, 2).reshape(-1, choices)[:tokens].view_as(experts)


@part("dropless")
class DroplessConfig(CapacityConfig):
    """As many as come (Gale et al. 2022)."""

    depends_on_batch = False

    def groups(self, tokens: int) -> int:
        return 1

    def expert_capacity(self, size: int, experts: int) -> int:
        return size

    def drop_overflow(
        self, experts: Int[Tensor, "*rows choices"], count: int, documents: Int[Tensor, "*rows"] | None = None
    ) -> Int[Tensor, "*rows choices"]:
        return experts


def _check_factor(factor: float) -> None:
    if factor <= 0:
        raise ConfigError("factor", want="above 0", got=factor)


@part("factor")
class FactorConfig(CapacityConfig):
    """A factor more than its even share of a group of tokens (Lepikhin et al. 2020; Fedus et al. 2021)."""

    factor: float = 1.25
    group: int = 1024  # tokens; the last group may be smaller
    least: int = 4  # places

    def __post_init__(self) -> None:
        check_at_least(1, group=self.group, least=self.least)
        _check_factor(self.factor)

    def groups(self, tokens: int) -> int:
        return max(1, -(-tokens // self.group))

    def expert_capacity(self, size: int, experts: int) -> int:
        return max(self.least, int(size * self.factor / experts))


@part("narang_factor")
class NarangFactorConfig(CapacityConfig):
    """The same over equal groups whose number is a multiple of the chips', as Narang et al. (2021) ran it."""

    factor: float = 1.25
    group: int = 1024
    least: int = 4
    multiple: int = 8

    def __post_init__(self) -> None:
        check_at_least(1, group=self.group, least=self.least, multiple=self.multiple)
        _check_factor(self.factor)

    def groups(self, tokens: int) -> int:
        fewest = max(1, -(-tokens // self.group))
        least = -(-fewest // self.multiple) * self.multiple
        for groups in range(least, 2 * least + 1, self.multiple):
            if tokens % groups == 0:
                return groups
        return fewest  # a batch that cannot be cut so is cut as it can

    def expert_capacity(self, size: int, experts: int) -> int:
        return max(self.least, int(size * self.factor / experts))


@part("row_places")
class RowPlacesConfig(CapacityConfig):
    """So many places for each document, whatever its length: Switch as transformers runs it.

    An encoder keeps to it in use too. A decoder does not: it writes token by token, and what it read at once before
    must not matter.
    """

    depends_on_batch = False
    in_eval = True

    most: int = 64

    def __post_init__(self) -> None:
        check_at_least(1, most=self.most)

    def groups(self, tokens: int) -> int:
        return 1

    def expert_capacity(self, size: int, experts: int) -> int:
        return min(self.most, size)

    def drop_overflow(
        self, experts: Int[Tensor, "*rows choices"], count: int, documents: Int[Tensor, "*rows"] | None = None
    ) -> Int[Tensor, "*rows choices"]:
        keys = experts if documents is None else experts + documents[..., None] * (count + 1)
        wanted, order = keys.transpose(-1, -2).flatten(-2).sort(stable=True)
        first = torch.searchsorted(wanted, wanted)  # where those begin who want the same
        ahead = torch.empty_like(order).scatter(-1, order, torch.arange(order.shape[-1], device=order.device) - first)
        full = ahead.unflatten(-1, experts.mT.shape[-2:]).mT >= self.most
        return experts.masked_fill(full, count)
