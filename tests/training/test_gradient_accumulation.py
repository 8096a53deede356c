"""Sums in pairs: one order of adding for any number of processes; R4 holds whole runs to it."""

from pathlib import Path

import pytest
import torch
from reliability.harness import differences, tiny, trainer_for, write_text

from heddle.core import ConfigError, override
from heddle.training.checks import check_fit
from heddle.training.loop import DeterministicAccumulation, ProcessGroup
from heddle.training.loop.reduction import PairwiseSum


def total(values: list[torch.Tensor]) -> torch.Tensor:
    pairs = PairwiseSum()
    for value in values:
        pairs.add([value.clone()])
    return pairs.total()[0]


@pytest.mark.parametrize("count", range(1, 18))
def test_branches_that_others_add_up_give_the_bits_of_the_whole(count: int) -> None:
    values = list(torch.randn(count, 50, generator=torch.Generator().manual_seed(0)))
    whole = total(values)
    torch.testing.assert_close(whole, torch.stack(values).sum(0))
    for share in [n for n in (1, 2, 4, 8, 16) if count % n == 0]:
        branches = [total(values[first : first + share]) for first in range(0, count, share)]
        assert torch.equal(total(branches), whole)


def test_one_after_the_other_would_give_other_bits() -> None:
    values = list(torch.randn(8, 50, generator=torch.Generator().manual_seed(0)))
    assert not torch.equal(sum(values[1:], values[0]), total(values))


class FourOthers(ProcessGroup):
    """Four processes, of which each has something else to add."""

    def all_gather(self, values: torch.Tensor) -> list[torch.Tensor]:
        return [values.roll(places) for places in range(4)]


def test_processes_are_branches_of_the_same_tree() -> None:
    weight = torch.nn.Parameter(torch.zeros(50))
    sums = DeterministicAccumulation([weight])
    sums.begin(torch.device("cpu"))
    weight.grad = torch.randn(50, generator=torch.Generator().manual_seed(0))
    a, b, c, d = FourOthers().all_gather(weight.grad.clone())
    sums.add(torch.ones(1))
    assert weight.grad is None
    sums.finish(FourOthers())
    assert weight.grad is not None and torch.equal(weight.grad, (a + b) + (c + d))
    assert not torch.equal(weight.grad, ((a + b) + c) + d)


def test_fixed_sums_of_two_micro_batches_are_the_plain_ones(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt")
    for reduction in ("fast", "deterministic"):
        trainer_for(tiny(text, training__steps=4, training__reduction=reduction), tmp_path / reduction / "run").fit()
    assert not differences(tmp_path / "fast" / "run", tmp_path / "deterministic" / "run")


@pytest.mark.parametrize(
    ("micro", "world", "match"),
    [
        (None, 1, r"training\.micro_batch: want 1 to 12, the rows of a process, .*, got None"),
        (6, 4, r"training\.micro_batch: want 1 to 3, the rows of a process, .*, got 6"),
        (2, 2, r"training\.micro_batch: want a number that gives each process 1, 2, 4, \.\.\. micro-batches.*, got 2"),
    ],
)
def test_micro_batches_that_would_change_with_the_processes_are_refused(
    micro: int | None, world: int, match: str, tmp_path: Path
) -> None:
    config = tiny(write_text(tmp_path / "text.txt"), training__batch=12, training__reduction="deterministic")
    check_fit(override(config, "training.micro_batch", 3), world)
    with pytest.raises(ConfigError, match=match):
        check_fit(override(config, "training.micro_batch", micro), world)
