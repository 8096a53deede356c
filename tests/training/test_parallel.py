"""A team of one waits for nobody; teams of two are held to their word in tests/reliability (R6 and R29)."""

import torch
from torch import nn

from heddle.training.loop import ProcessGroup


def test_a_team_of_one_waits_for_nobody() -> None:
    processes, module = ProcessGroup(), nn.Linear(2, 2)
    assert (
        processes.is_main
        and processes.data_parallel(module) is module
        and processes.broadcast_text("runs/first") == "runs/first"
    )
    assert processes.all_reduce(torch.tensor([1, 2])).tolist() == [1, 2]
    processes.barrier()
    processes.close()
