"""Requests: what one row is to generate from, why a row ended, and the deadline of a generation."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import final

from torch import Tensor

from heddle.core import UsageError
from heddle.decoding.constraints import Constraint

Prompt = Sequence[int]
Source = Prompt | Tensor  # of an encoder-decoder: ids, or the features of a sound or an image


class FinishReason(StrEnum):
    """Why a row ended."""

    STOP = "stop"  # a stop id, a stop string, or the end of what its constraint describes
    LENGTH = "length"  # as many new tokens as requested
    CONTEXT = "context"  # the model has no positions left
    TIME = "time"  # the deadline has passed
    STUCK = "stuck"  # its constraint and the banned tokens allow no token


@dataclass(frozen=True)
class Request:
    """What one row starts from: a prompt, the source of an encoder-decoder, and a constraint on the new tokens."""

    ids: Prompt = ()  # with an encoder-decoder: the beginning of the target
    source: Source | None = None
    constraint: Constraint | None = None


def make_requests(prompts: Sequence[Prompt], sources: Sequence[Source] | None = None) -> list[Request]:
    """Return a request for each prompt, with its source if there are sources, without constraints."""
    if sources is None:
        return [Request(prompt) for prompt in prompts]
    if len(sources) != len(prompts):
        raise UsageError(f"source: want {len(prompts)}, one for each row, got {len(sources)}")
    return [Request(prompt, source) for prompt, source in zip(prompts, sources, strict=True)]


@final
@dataclass(frozen=True)
class Deadline:
    """The time at which rows end as they are; None: no deadline."""

    end: float | None

    @classmethod
    def after(cls, seconds: float | None) -> "Deadline":
        """Return the deadline that many seconds from now."""
        return cls(None if seconds is None else time.monotonic() + seconds)

    def passed(self) -> bool:
        """Tell whether the time is up."""
        return self.end is not None and time.monotonic() >= self.end
