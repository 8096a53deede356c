"""Base: the model that holds the frozen weights of a run with adapters (LoRA), whose checkpoints hold what learns."""

import contextlib
import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from heddle.core import DamageError, UsageError
from heddle.core.system import Hardware, choose_hardware
from heddle.models.networks import Model

BASE = "base"  # its key in the state of a checkpoint
FROZEN_MODEL = "frozen_model"  # the same of the model that an objective reads beside the trained one
DEEPEST = 4  # bases over bases; a run may name itself
_given: ContextVar[str | None] = ContextVar("base", default=None)
_depth: ContextVar[int] = ContextVar("base_depth", default=0)


def use_base(place: str) -> None:
    """Look for the base of runs in this place only, until the context ends."""
    _given.set(place)


@contextlib.contextmanager
def using_base(place: str | None) -> Iterator[None]:
    """Look for the base of runs in this place only, in this block; None: where it was."""
    token = _given.set(_given.get() if place is None else place)
    try:
        yield
    finally:
        _given.reset(token)


class BaseModel(ABC):
    """A model on disk that may be a base."""

    path: Path

    @abstractmethod
    def model(self, hardware: Hardware | None = None) -> Model:
        """Return the model with its weights."""

    @property
    def frozen_base(self) -> "Base | None":
        """Return the base that holds the frozen weights of this one; None: it holds all itself."""
        return None

    def missing(self) -> frozenset[str]:
        """Return the names of the weights that only its base holds."""
        return frozenset()

    def resolved(self) -> Path:
        """Return the place of exactly these weights."""
        return self.path.resolve()

    def keep_for(self, run: Path) -> None:
        """Keep these weights as long as the run that needs them exists; by default nothing removes them."""
        return None


@dataclass(frozen=True)
class BaseReference:
    """Where the base of a run is, and what it is.

    name: the base as the user gave it. path: where it was. beside: the same place, seen from the run's folder.
    sha256: checksum of those of its weights that the run needs.
    """

    name: str
    path: str
    beside: str
    sha256: str

    @classmethod
    def of(cls, name: str, base: BaseModel, run: Path, sha256: str) -> Self:
        """Refer to a base from the folder of a run."""
        path = str(base.resolved())
        return cls(name, path, os.path.relpath(path, run.resolve()), sha256)

    @classmethod
    def from_state(cls, state: Any, where: Path) -> Self:
        """Read what `to_state` returned."""
        names = [field.name for field in fields(cls)]
        if not isinstance(state, dict) or not all(isinstance(state.get(name), str) for name in names):
            raise DamageError(f"{where}: want {', '.join(names)} of its base, found {str(state)[:80]}")
        return cls(**{name: state[name] for name in names})

    def to_state(self) -> dict[str, str]:
        """Return the reference as the state of a checkpoint holds it."""
        return asdict(self)

    def places(self, run: Path) -> list[str]:
        """Return where to look: where it was, at the same place beside the run, and as the user gave it."""
        beside = os.path.normpath(run.resolve() / self.beside)
        return list(dict.fromkeys((self.path, beside, self.name)))


class Base:
    """The base of a run, found when its weights are needed; `source` and `reference` then tell where."""

    def __init__(self, reference: BaseReference, run: Path, find: Callable[[str], BaseModel]) -> None:
        self.reference, self.run, self._find = reference, run, find
        self.source: BaseModel | None = None

    def weights(self, names: Collection[str], given: str | None = None) -> dict[str, Tensor]:
        """Return these weights in float32, verified; `given` is the only place to look, unless `--base` names one."""
        given = _given.get() or given
        altered = None
        for place in self.reference.places(self.run) if given is None else [given]:
            source = self._open(place, must=given is not None)
            if source is None:
                continue
            weights = _load(source)
            if weights.keys() >= set(names) and checksum(weights, names) == self.reference.sha256:
                self.source = source
                self.reference = BaseReference.of(self.reference.name, source, self.run, self.reference.sha256)
                return {name: weights[name] for name in names}
            altered = altered or place
        raise self._altered(altered) if altered is not None else self._gone()

    def _open(self, place: str, must: bool) -> BaseModel | None:
        """Return the model at a place, or None where there is none; `must`: the user named the place."""
        try:
            source = self._find(place)
            if source.frozen_base is not None:
                raise UsageError(f"{place}: holds only what it learnt; want the model that it was trained from")
        except (UsageError, DamageError):
            if must:
                raise
            return None
        return source

    @property
    def _needs(self) -> str:
        return f"{self.run}: its checkpoints hold only the weights that learn; the others are those of"

    def _gone(self) -> UsageError:
        first, *others = self.reference.places(self.run)
        places = ", nor ".join([first, *(place for place in others if place != self.reference.name)])
        gone = f"{self.reference.name}, which is not at {places}"
        return UsageError(f"{self._needs} {gone}; put it back, or name its place: --base PATH")

    def _altered(self, place: str) -> DamageError:
        return DamageError(
            f"{self._needs} {self.reference.name}, but {place} has other weights than those that the run was trained "
            f"with; restore them, or name the place of a copy: --base PATH"
        )


@dataclass(frozen=True)
class FrozenWeights:
    """The weights that the checkpoints of a run leave out, and the base that holds them."""

    names: frozenset[str]
    reference: BaseReference
    source: BaseModel

    def without(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights that a checkpoint holds."""
        return {name: weight for name, weight in weights.items() if name not in self.names}


@dataclass(frozen=True)
class FrozenModel:
    """A model that an objective reads beside the trained one, such as a teacher: no checkpoint of the run holds it.

    model: None where what it says is stored, and `source` holds that.
    """

    model: Model | None
    reference: BaseReference
    source: BaseModel


def _load(source: BaseModel) -> dict[str, Tensor]:
    """Return the weights of a base; the tensors, and not the model, hold the memory."""
    if _depth.get() >= DEEPEST:
        raise DamageError(f"{source.path}: a base over {DEEPEST} others; want the model itself")
    token = _depth.set(_depth.get() + 1)
    try:
        return source.model(choose_hardware("cpu", "float32")).weights()
    finally:
        _depth.reset(token)


def checksum(weights: Mapping[str, Tensor], names: Collection[str]) -> str:
    """Return the SHA-256 of some weights with their names, dtypes and shapes."""
    digest = hashlib.sha256()
    for name in sorted(names):
        tensor = weights[name].detach().to("cpu").contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
