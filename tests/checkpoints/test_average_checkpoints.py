"""Averaged checkpoints: the mean of their weights, and errors where there is none."""

from pathlib import Path

import pytest
import torch

from heddle.checkpoints.store import Checkpoint, Snapshot, Store, average_checkpoints, open_checkpoint
from heddle.core import UsageError


def saved(folder: Path, weights: list[dict[str, torch.Tensor]]) -> list[Checkpoint]:
    store = Store(folder, keep_last=100)
    return [open_checkpoint(store.save(Snapshot(i, {"model": w}, {}))) for i, w in enumerate(weights)]


def test_the_mean_is_that_of_float64(tmp_path: Path) -> None:
    weights = [{"w": torch.randn(4, 3), "h": torch.randn(5).bfloat16(), "n": torch.tensor(i)} for i in range(7)]
    mean = average_checkpoints(saved(tmp_path, weights))
    for name in ("w", "h"):
        want = torch.stack([w[name].double() for w in weights]).mean(0)
        assert mean[name].dtype == weights[0][name].dtype
        assert torch.equal(mean[name], want.to(mean[name].dtype))
    assert mean["n"].item() == 6


def test_small_parts_survive_where_low_precision_would_lose_them(tmp_path: Path) -> None:
    weights = [{"w": torch.tensor([256.0]).bfloat16()}] + [{"w": torch.tensor([1.0]).bfloat16()}] * 15
    assert average_checkpoints(saved(tmp_path, weights))["w"].item() == torch.tensor(271 / 16).bfloat16().item()


def test_the_average_of_one_is_itself(tmp_path: Path) -> None:
    weights = {"w": torch.randn(9), "f": torch.tensor([-0.0, 1e-45, float("inf")])}
    mean = average_checkpoints(saved(tmp_path, [weights]))
    assert all(torch.equal(mean[k].view(torch.int32), weights[k].view(torch.int32)) for k in weights)


@pytest.mark.parametrize(
    "other", [{"v": torch.ones(2)}, {"w": torch.ones(3)}, {"w": torch.ones(2), "v": torch.ones(1)}]
)
def test_unlike_checkpoints_are_refused(tmp_path: Path, other: dict[str, torch.Tensor]) -> None:
    with pytest.raises(UsageError):
        average_checkpoints(saved(tmp_path, [{"w": torch.ones(2)}, other]))


def test_nothing_to_average_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one"):
        average_checkpoints([])
