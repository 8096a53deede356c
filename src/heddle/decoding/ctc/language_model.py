"""Shallow fusion: the log-probabilities of a language model beside those of a recognizer (Gulcehre et al. 2015)."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from heddle.core import UsageError
from heddle.decoding.runtime import device_of
from heddle.models.networks import LanguageModel
from heddle.nn.state import State

Prefix = tuple[int, ...]
Logprobs = NDArray[np.float64]


class PrefixLanguageModel:
    """A language model that scores what may follow prefixes; each is read once, from the state of its own prefix."""

    def __init__(self, model: LanguageModel, start: Sequence[int], longest: int) -> None:
        if model.sight != "past":
            raise UsageError("language model: want one that sees the past only; this one sees the whole text")
        self.model, self.start, self.longest = model, list(start), longest
        self._known: dict[Prefix, tuple[Logprobs, State]] = {}

    def logprobs(self, prefixes: Sequence[Prefix]) -> Logprobs:
        """Return the log-probability of each next token after each prefix, whose own prefixes were asked before."""
        new = [prefix for prefix in dict.fromkeys(prefixes) if prefix not in self._known]
        if () in new:
            ids = torch.tensor([self.start], device=device_of(self.model))
            self._read([()], ids, self.model.new_state(1, len(self.start) + self.longest))
        longer = [prefix for prefix in new if prefix]
        if longer:
            states = State.join([self._known[prefix[:-1]][1] for prefix in longer])
            self._read(longer, torch.tensor([[prefix[-1]] for prefix in longer], device=states.lengths.device), states)
        return np.stack([self._known[prefix][0] for prefix in prefixes])

    def _read(self, prefixes: Sequence[Prefix], ids: torch.Tensor, states: State) -> None:
        vectors, after = self.model.step(ids, states)
        found = self.model.head.logits(vectors[:, -1]).double().log_softmax(-1).cpu().numpy()
        for row, prefix in enumerate(prefixes):
            self._known[prefix] = (found[row], after.select([row]) if len(prefixes) > 1 else after)

    def keep(self, prefixes: Iterable[Prefix]) -> None:
        """Forget all but some prefixes."""
        self._known = {prefix: self._known[prefix] for prefix in prefixes if prefix in self._known}
