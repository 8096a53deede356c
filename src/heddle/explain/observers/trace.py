"""Trace: every step of a forward pass in order, by name, with its shape and its values.

Modules are seen by hooks. What a part computes between its modules is recomputed: queries, keys and values per head
with their positions, scores and weights of attention; the gates of recurrent cells.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from heddle.explain.inputs import Observer, PartCall, Reading, Section, TokenSequence, part_calls
from heddle.nn.attention import AttentionPart, Synthesizer
from heddle.nn.base import upcast
from heddle.nn.recurrent import AttentionRNN, Bidirectional, Recurrent, SegmentRecurrence
from heddle.nn.stack import Branch, Plan


@dataclass(frozen=True)
class TraceStep:
    """One step: the module or the quantity, and its output without the batch."""

    name: str
    kind: str  # the class of the module, or what a recomputed quantity is
    values: Tensor

    def plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "name": self.name,
            "kind": self.kind,
            "shape": list(self.values.shape),
            "values": self.values.tolist(),
        }


@dataclass(frozen=True)
class Trace(Section):
    """All steps, in order."""

    steps: tuple[TraceStep, ...]

    def __getitem__(self, name: str) -> Tensor:
        """Return the values of the step of this name; of the last one, where a loop has several."""
        return next(step.values for step in reversed(self.steps) if step.name == name)

    def plain(self) -> list[dict[str, Any]]:
        return [each.plain() for each in self.steps]


class TraceObserver(Observer):
    """Keeps the output of every module, and recomputes what lies between them."""

    def __init__(self, reading: Reading) -> None:
        self.reading, self.steps, self.starts = reading, list[TraceStep](), dict[str, int]()

    def attach(self, hooks: contextlib.ExitStack) -> None:
        for sequence in self.reading.sequences:
            for name, module in traced_modules(sequence):
                if isinstance(module, Branch):
                    hooks.callback(module.register_forward_pre_hook(self._before_branch(name)).remove)
                    hooks.callback(module.register_forward_hook(self._after_branch(sequence, name)).remove)
                else:
                    hooks.callback(module.register_forward_hook(self._after_module(name)).remove)

    def _after_module(self, name: str) -> Any:
        def see(module: nn.Module, inputs: Any, output: Any) -> None:
            value = output[0] if isinstance(output, tuple) and output else output
            if isinstance(value, Tensor) and not self.reading.recomputes and not (inputs and value is inputs[0]):
                self.add(name, type(module).__name__, value)

        return see

    def _before_branch(self, name: str) -> Any:
        def see(_module: object, _inputs: object) -> None:
            self.starts[name] = len(self.steps)

        return see

    def _after_branch(self, sequence: TokenSequence, name: str) -> Any:
        def see(branch: Branch, inputs: Any, output: Any) -> None:
            later, self.steps = self.steps[self.starts[name] :], self.steps[: self.starts[name]]
            normed = bool(later) and later[0].name == f"{name}.norm"
            self.steps += later[:normed]
            with self.reading.recomputing():
                for call in part_calls(sequence, name, branch, inputs, output):
                    for quantity, values in quantities(call):
                        self.add(f"{call.name}.{quantity}", quantity.rpartition(".")[2], values)
            self.steps += later[normed:]

        return see

    def add(self, name: str, kind: str, values: Tensor) -> None:
        """Keep a step; the batch, of one row, is left out."""
        kept = upcast(values.detach()).cpu()
        self.steps.append(TraceStep(name, kind, kept[0] if kept.dim() > 1 and len(kept) == 1 else kept))

    def result(self) -> Trace:
        """Return all steps, and from the last one the logits and probabilities."""
        logits = self.reading.logits()
        self.add("logits", "logits", logits)
        self.add("probabilities", "probabilities", logits.softmax(-1))
        return Trace(tuple(self.steps))


def traced_modules(sequence: TokenSequence) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules whose outputs are steps: all but plans, which only pass on what others return."""
    for root in ("embedding", "position", "stack", "norm"):
        for name, module in sequence.tower.get_submodule(root).named_modules():
            if not isinstance(module, Plan | nn.ModuleList | nn.Identity):
                yield f"{sequence.prefix}{root}.{name}".rstrip("."), module


def quantities(call: PartCall) -> Iterator[tuple[str, Tensor]]:
    """Yield what a part computes between its modules, by name."""
    part = call.part
    if isinstance(part, AttentionPart):
        inputs = part.attention_inputs(call.x, call.ctx).with_mask()
        yield from (("query", inputs.query), ("key", inputs.key), ("value", inputs.value))
        yield "scores", part.score(inputs)
        weights = part.score.attention_weights(inputs)
        yield "weights", weights
        yield "heads", inputs.weigh_values(weights)
    elif isinstance(part, Synthesizer):
        yield "weights", part.attention_weights(call.x, call.ctx)
    elif isinstance(part, Recurrent | Bidirectional):
        if isinstance(part, AttentionRNN | SegmentRecurrence):
            yield "weights", part.attention_weights(call.x, call.ctx, call.slot)
        for cell in part.gate_values(call.x, call.ctx, call.slot):
            for name, values in cell.values.items():
                yield f"{cell.name}.{name}".lstrip("."), values
