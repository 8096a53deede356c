"""Each law fails on a part made to break it; the same part without its fault keeps them all."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from jaxtyping import TypeCheckError
from laws import laws
from laws.cases import CHANNEL, around
from torch import Tensor, nn

from heddle.core import part, replace
from heddle.models.networks import LanguageModelConfig
from heddle.nn.base import Context, Linear, MixerConfig, Part, Place, Role, Stateful
from heddle.nn.state import HiddenState

Fault = Literal[
    "none",
    "cuts the row",
    "sees the next token",
    "leaks a gradient",
    "has an idle weight",
    "forgets its input",
    "grows when decoded",
    "draws at random",
    "ignores documents",
    "mixes the batch",
    "drops its state",
    "counts padding",
    "moves a row without tokens",
    "ignores select",
    "forgets when grown",
    "promises to take back",
]


@part("planted")
class PlantedConfig(MixerConfig):
    """A decaying sum of the past, with at most one fault."""

    fault: Fault = "none"
    growing: int = 0

    def __post_init__(self) -> None:
        if self.fault == "grows when decoded":
            object.__setattr__(self, "growing", self.growing + 1)

    def build(self, width: int, place: Place) -> Part:
        return Planted(width, self.fault)


@dataclasses.dataclass(frozen=True)
class Stubborn:
    """A slot that no beam can reorder."""

    hidden: HiddenState

    def map(self, change: Callable[[Tensor], Tensor]) -> "Stubborn":
        return self

    def resize(self, capacity: int) -> "Stubborn":
        return self

    def can_rewind(self, tokens: int) -> bool:
        return tokens == 0


@dataclasses.dataclass(frozen=True)
class Fragile:
    """A slot that loses all when it is moved to a larger place."""

    hidden: HiddenState

    def map(self, change: Callable[[Tensor], Tensor]) -> "Fragile":
        return Fragile(self.hidden.map(change))

    def resize(self, capacity: int) -> "Fragile":
        return self.map(torch.zeros_like)

    def can_rewind(self, tokens: int) -> bool:
        return tokens == 0


@dataclasses.dataclass(frozen=True)
class Boastful:
    """A slot that says it can take tokens back, which went into its vectors for good."""

    hidden: HiddenState

    def map(self, change: Callable[[Tensor], Tensor]) -> "Boastful":
        return Boastful(self.hidden.map(change))

    def resize(self, capacity: int) -> "Boastful":
        return self

    def can_rewind(self, tokens: int) -> bool:
        return True


WRAPS = {"ignores select": Stubborn, "forgets when grown": Fragile, "promises to take back": Boastful}


class Planted(Stateful):
    """sum_t decay^(now - t) * into(x_t), per document."""

    roles = {"unused": Role.GAIN}

    def __init__(self, width: int, fault: Fault) -> None:
        super().__init__()
        self.fault, self.width = fault, width
        self.into = Linear(width, width)
        if fault == "has an idle weight":
            self.unused = nn.Parameter(torch.empty(width))
        self.register_buffer("noise", torch.randn(width) if fault == "draws at random" else None, persistent=False)

    def forward(self, x: Any, ctx: Context) -> Any:
        return self.step(x, ctx, None)[0]

    def step(self, x: Any, ctx: Context, slot: object) -> tuple[Any, object]:
        values = self.into(x)
        if self.fault == "forgets its input":
            values = torch.zeros_like(values)
        if self.fault == "mixes the batch":
            values = values - values.mean(0, keepdim=True)
        if self.fault == "has an idle weight":
            values = values + 0 * self.unused
        if self.noise is not None:
            values = values + self.noise
        held = slot.hidden if isinstance(slot, Stubborn | Fragile | Boastful) else slot
        total = held.vectors[0] if isinstance(held, HiddenState) else values.new_zeros(len(x), self.width)
        if self.fault == "drops its state":
            total = torch.zeros_like(total)
        outputs, total = self.run(values, total, ctx)
        if self.fault == "cuts the row":
            outputs = outputs[:, 1:]
        if self.fault == "sees the next token":
            outputs = outputs + values.roll(-1, dims=1)
        if self.fault == "leaks a gradient":
            outputs = outputs + (1e-30 * values.roll(-1, dims=1))
        wrap = WRAPS.get(self.fault)
        return outputs, HiddenState((total,)) if wrap is None else wrap(HiddenState((total,)))

    def run(self, values: Tensor, total: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """Go through time by hand, as slowly and as plainly as possible."""
        outputs = []
        for t in range(values.shape[1]):
            if t and ctx.documents is not None and self.fault != "ignores documents":
                same = ctx.documents[:, t] == ctx.documents[:, t - 1]
                total = total * same[:, None]
            moved = 0.7 * total + values[:, t]
            if ctx.lengths is not None and self.fault != "counts padding":
                least = 1 if self.fault == "moves a row without tokens" else 0
                moved = moved.where(t < ctx.lengths.clamp(min=least)[:, None], total)
            total = moved
            outputs.append(total)
        return torch.stack(outputs, dim=1), total


def holding(fault: Fault) -> LanguageModelConfig:
    return around(PlantedConfig(fault=fault), CHANNEL)


@pytest.mark.parametrize("law", laws.ALL, ids=lambda law: law.__name__)
def test_the_part_without_a_fault_keeps_every_law(law: Callable[[LanguageModelConfig], None]) -> None:
    law(holding("none"))


@pytest.mark.parametrize(
    ("fault", "law"),
    [
        ("cuts the row", laws.keeps_shape),
        ("sees the next token", laws.never_sees_the_future),
        ("leaks a gradient", laws.never_sees_the_future),
        ("has an idle weight", laws.every_weight_gets_gradient),
        ("grows when decoded", laws.survives_encoding),
        ("draws at random", laws.builds_the_same_twice),
        ("ignores documents", laws.packed_is_apart),
        ("mixes the batch", laws.padded_is_unpadded),
        ("sees the next token", laws.padded_is_unpadded),
        ("drops its state", laws.stepwise_is_full),
        ("drops its state", laws.chunked_is_whole),
        ("mixes the batch", laws.batched_is_alone),
        ("counts padding", laws.batched_is_alone),
        ("moves a row without tokens", laws.batched_is_alone),
        ("ignores select", laws.selected_rows_go_on),
        ("ignores select", laws.reset_rows_begin_anew),
        ("forgets when grown", laws.grown_state_goes_on),
        ("forgets when grown", laws.joined_rows_go_on),
        ("promises to take back", laws.tokens_taken_back_leave_no_trace),
    ],
)
def test_a_planted_fault_is_found(fault: Fault, law: Callable[[LanguageModelConfig], None]) -> None:
    # shapes are checked at run time too, and that check may come first
    with pytest.raises((AssertionError, TypeCheckError)):
        law(holding(fault))


def test_a_model_that_forgets_its_input_cannot_learn_by_heart() -> None:
    forgetful = around(PlantedConfig(fault="forgets its input"))
    with pytest.raises(AssertionError, match="nats"):
        laws.overfits_eight_sentences(replace(forgetful, ties=()), steps=60)


def test_every_law_has_a_planted_fault() -> None:
    marks = test_a_planted_fault_is_found.pytestmark[0].args[1]
    assert {law for _, law in marks} | {laws.overfits_eight_sentences} == set(laws.ALL)
