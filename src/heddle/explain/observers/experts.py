"""Experts of a mixture: those that the router chose for each token, their gates, and all probabilities."""

import contextlib
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from heddle.core import UsageError
from heddle.explain.inputs import Observer, Reading, Section, TokenSequence, modules_of
from heddle.nn.channels import Experts


@dataclass(frozen=True)
class ExpertChoice:
    """The experts of one layer: for each token the chosen ones, their gates, and the probabilities of all."""

    name: str
    sequence: str
    experts: int
    chosen: Tensor  # [length, choices]; a number past the last expert: none
    gates: Tensor
    probabilities: Tensor  # [length, experts]

    def plain(self) -> dict[str, Any]:
        """Return it as plain data; only experts that exist are listed."""
        pairs = zip(self.chosen.tolist(), self.gates.tolist(), strict=True)
        used = [[[id, gate] for id, gate in zip(ids, gates, strict=True) if id < self.experts] for ids, gates in pairs]
        return {
            "name": self.name,
            "sequence": self.sequence,
            "experts": self.experts,
            "chosen": used,
            "probabilities": self.probabilities.tolist(),
        }


@dataclass(frozen=True)
class ExpertChoices(Section):
    """The experts of all layers, in the order of the forward pass."""

    layers: tuple[ExpertChoice, ...]

    def plain(self) -> list[dict[str, Any]]:
        return [each.plain() for each in self.layers]


class ExpertsObserver(Observer):
    """Keeps what every router decided."""

    def __init__(self, reading: Reading) -> None:
        self.found = [
            (sequence, name, one) for sequence in reading.sequences for name, one in modules_of(sequence, Experts)
        ]
        self.layers: list[ExpertChoice] = []
        if not self.found:
            raise UsageError("experts: want a mixture of experts, got a model without")

    def attach(self, hooks: contextlib.ExitStack) -> None:
        for sequence, name, experts in self.found:

            def after(
                _module: Any, inputs: Any, routing: Any, sequence: TokenSequence = sequence, name: str = name
            ) -> None:
                count = routing.probabilities.shape[-1]
                kept = [one[0].cpu() for one in (routing.experts, routing.gates, routing.probabilities)]
                self.layers.append(ExpertChoice(name + inputs[1].turn, sequence.name, count, *kept))

            hooks.callback(experts.router.register_forward_hook(after).remove)

    def result(self) -> ExpertChoices:
        return ExpertChoices(tuple(self.layers))
