"""R29, splits: 32 rows of unequal length, as 8 x 4 and as 2 processes x 16, give one gradient to 1e-12 in fp64; and the
optimizers step as torch's own do.

Run as a script, this file is one of the two processes.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from laws.cases import CONTEXT, SMALL, VOCAB, ids, preset_functions
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from heddle.data.rows import Batch
from heddle.models.networks import LanguageModel, LanguageModelConfig
from heddle.models.presets import PRESETS, preset
from heddle.nn.base import Role, roles_of
from heddle.objectives import NextTokenConfig
from heddle.training.loop import Guard, GuardConfig, ModelWithLoss, ProcessGroup, Step
from heddle.training.optimizers import AdamWConfig, MuonConfig, Optimizers

ROWS, STEPS, NEAR = 32, 3, 1e-12
PIECES = (16, 4)  # rows at once on each of two processes


def loud(name: str) -> LanguageModel:
    """Build a small preset in double precision, no weight of which is idle or zero."""
    config = preset(name).config(vocab=VOCAB, context=CONTEXT, **SMALL[name])
    assert isinstance(config, LanguageModelConfig)
    model = config.build().double()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.2 * torch.randn(weight.shape, generator=draw, dtype=torch.float64)
    return model


def rows(step: int) -> Batch:
    """Return the rows of a step, with 1 to all of their targets counting."""
    tokens = ids(ROWS, CONTEXT + 1, seed=step)
    lengths = torch.randint(1, CONTEXT + 1, (ROWS, 1), generator=torch.Generator().manual_seed(step))
    lengths[: ROWS // 2] = lengths[: ROWS // 2].clamp(min=CONTEXT // 2)  # the first process has more to do
    real = torch.arange(CONTEXT) < lengths
    return Batch(tokens[:, :-1], tokens[:, 1:], real.float(), torch.arange(ROWS), documents=(~real).long())


def train(name: str, micro: int, processes: ProcessGroup) -> dict[str, Tensor]:
    """Take some steps of plain descent on this process's share; return weights, losses and norms."""
    model, seen = loud(name), {}
    share = ROWS // processes.world
    step = Step(
        losses=processes.data_parallel(ModelWithLoss(model, NextTokenConfig())),
        model=model,
        optimizers=Optimizers(model, [torch.optim.SGD(model.parameters(), lr=0.1)]),
        guard=Guard.start(GuardConfig(), torch.device("cpu")),
        average=None,
        processes=processes,
        seed=0,
        clip=1.0,
        micro_batch=micro,
        carried=[None] * (share // micro),
    )
    for number in range(STEPS):
        batch = rows(number)
        mine = batch.slice(processes.rank * share, (processes.rank + 1) * share)
        assert abs(mine.tokens - batch.tokens / 2) > 10, "the shares are unequal"
        report = step(mine, number, batch.tokens)
        seen |= {f"loss {number}": report.loss, f"norm {number}": report.norm}
    return seen | model.weights()


def worst(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    assert ours.keys() == theirs.keys()
    return max((ours[name] - theirs[name]).abs().max().item() for name in ours)


def two_processes(names: list[str], folder: Path) -> dict[str, list[dict[str, Tensor]]]:
    """Train on two processes, each share whole and in pieces; return what the second, which leads nothing, holds."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "PYTHONPATH": paths}
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, str(folder), *names],
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    assert [process.wait(120) for process in processes] == [0, 0]
    held = {}
    for name in names:
        ranks = [[load_file(folder / f"{name}-{micro}-{rank}") for micro in PIECES] for rank in range(2)]
        assert max(worst(*pair) for pair in zip(*ranks, strict=True)) == 0, "the processes differ"
        held[name] = ranks[1]
    return held


def trial(names: list[str], folder: Path) -> float:
    """Return the largest difference between one batch, eight micro-batches and two processes."""
    most, together = 0.0, two_processes(names, folder)
    for name in names:
        one = train(name, ROWS, ProcessGroup())
        apart = [worst(one, other) for other in (train(name, 4, ProcessGroup()), *together[name])]
        assert max(apart) <= NEAR, f"{name}: {apart}"
        most = max(most, *apart)
    return most


# --- optimizers against torch's own -----------------------------------------------------------------------------------


def optimizers_agree(name: str) -> float:
    """Step with ours and with torch's unfused optimizers on the same gradients; return the largest difference.

    torch's Muon multiplies in bfloat16, ours in the dtype of the model; here theirs is made to stay in float64 too.
    """
    most = 0.0
    for config in (
        AdamWConfig(learning_rate=0.01, weight_decay=0.1),
        MuonConfig(learning_rate=0.02, rest=AdamWConfig(learning_rate=0.01)),
    ):
        ours, theirs = loud(name), loud(name)
        built, references = config.build(ours), reference(config, theirs)
        for number in range(5):
            draw = torch.Generator().manual_seed(number)
            for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
                a.grad = torch.randn(a.shape, generator=draw, dtype=torch.float64)
                b.grad = a.grad.clone()
            built.step(torch.tensor(False))
            with mock.patch.object(torch.Tensor, "bfloat16", torch.Tensor.double):
                for one in references:
                    one.step()
        most = max(most, worst(ours.weights(), theirs.weights()))
    return most


def reference(config: AdamWConfig | MuonConfig, model: LanguageModel) -> list[torch.optim.Optimizer]:
    """Build torch's optimizers by hand: decay for matrices, none for gains and biases; Muon inside the stack."""
    roles, adam = roles_of(model), config.rest if isinstance(config, MuonConfig) else config
    parameters = dict(model.named_parameters())
    inside = [n for n, r in roles.items() if r in (Role.INSIDE, Role.INTO_STREAM, Role.RECURRENT)]
    matrices = [n for n in inside if parameters[n].dim() == 2] if isinstance(config, MuonConfig) else []
    rest = [n for n in parameters if n not in matrices]
    plain = [parameters[n] for n in rest if roles[n] in (Role.GAIN, Role.BIAS)]
    decayed: list[nn.Parameter] = [parameters[n] for n in rest if roles[n] not in (Role.GAIN, Role.BIAS)]
    groups = [{"params": decayed, "weight_decay": adam.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    found: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(
            [g for g in groups if g["params"]], lr=adam.learning_rate, betas=adam.betas, eps=adam.eps, fused=False
        )
    ]
    if isinstance(config, MuonConfig):
        chosen = [parameters[n] for n in matrices]
        found.append(
            torch.optim.Muon(
                chosen, lr=config.learning_rate, momentum=config.momentum, weight_decay=config.weight_decay
            )
        )
    return found


def test_r29_splits_and_processes_give_one_gradient(tmp_path: Path) -> None:
    most, stepped = trial(["gpt2", "lstm_lm"], tmp_path), optimizers_agree("gpt2")
    print(f"R29: 32 = 8 x 4 = 2 ranks x 16 to {most:.1e}; optimizers equal torch's to {stepped:.1e}")
    assert most <= NEAR and stepped <= NEAR


@pytest.mark.full
def test_r29_splits_full(tmp_path: Path) -> None:
    names = [name for name in preset_functions(LanguageModelConfig) if name in PRESETS]
    most, stepped = trial(names, tmp_path), max(optimizers_agree(name) for name in names)
    print(f"R29: 32 = 8 x 4 = 2 ranks x 16 to {most:.1e} for every preset; optimizers equal torch's to {stepped:.1e}")
    assert most <= NEAR and stepped <= NEAR


def serve(folder: Path, names: list[str]) -> None:
    """Be one of the two processes."""
    processes = ProcessGroup.initialize("cpu")
    assert processes.world == 2 and processes.is_main == (processes.rank == 0)
    assert processes.broadcast_text("runs/é-2" if processes.is_main else "") == "runs/é-2"
    assert processes.all_reduce(torch.tensor([1, processes.rank])).tolist() == [2, 1]
    for name in names:
        for micro in PIECES:
            save_file(train(name, micro, processes), folder / f"{name}-{micro}-{processes.rank}")
    processes.close()
    os._exit(0)  # torch's own threads may still be ending, and have aborted a process that was done


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2:])
