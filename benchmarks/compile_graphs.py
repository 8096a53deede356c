"""Composition under torch.compile: what is one graph, what breaks, what recompiles, and what composing costs in eager.

`python benchmarks/compile_graphs.py` prints one JSON line per trial; `--inductor` also compiles for real and times it.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from baselines import PlainGPT
from entry_point import run_main
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

from heddle.models.networks import LanguageModel
from heddle.models.presets import build
from heddle.nn.base import Context

VOCAB, LENGTH = 64, 16
SIZES = {"layers": 2, "width": 48, "vocab": VOCAB, "context": 32}
Trial = Callable[[], dict[str, Any]]


@torch.no_grad()
def small(name: str) -> LanguageModel:
    """Build a preset whose every weight has its say; some begin as zeros, which would hide a difference."""
    model = build(name, **SIZES)
    assert isinstance(model, LanguageModel)
    draw = torch.Generator().manual_seed(1)
    for weight in model.parameters():
        weight.add_(0.1 * torch.randn(weight.shape, generator=draw))
    return model


def ids() -> Tensor:
    return torch.randint(VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(0))


def packings() -> Iterator[Context]:
    """Yield rows packed from two and three documents, cut in ever other places."""
    for cut in (3, 8, 11, 5):
        rows = [[0] * cut + [1] * (LENGTH - cut), [0] * 2 + [1] * cut + [2] * (LENGTH - 2 - cut)]
        yield Context(documents=torch.tensor(rows))


def counted(target: Any, fullgraph: bool = True) -> tuple[Any, CompileCounterWithBackend]:
    """Compile by tracing alone, which is quick, and count the graphs."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    return torch.compile(target, fullgraph=fullgraph, backend=counter), counter


def apart(left: Tensor, right: Tensor) -> float:
    return (left - right).abs().max().item()


def training(name: str) -> dict[str, Any]:
    """Compile loss and gradients of a model."""
    model = small(name)

    def loss(inputs: Tensor) -> Tensor:
        return model.head.nll(model(inputs), inputs).mean()

    def gradients() -> list[Tensor]:
        found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        model.zero_grad()
        return found

    loss(ids()).backward()
    want = gradients()
    compiled, counter = counted(loss)
    compiled(ids()).backward()
    worst = max(apart(a, b) for a, b in zip(gradients(), want, strict=True))
    return {"graphs": counter.frame_count, "apart": worst}


def packed(name: str, fullgraph: bool = True) -> dict[str, Any]:
    """Compile a model over packed documents whose cuts change from batch to batch."""
    model = small(name)
    compiled, counter = counted(model, fullgraph)
    graphs, worst = [], 0.0
    with torch.no_grad():
        for ctx in packings():
            worst = max(worst, apart(compiled(ids(), ctx), model(ids(), ctx)))
            graphs.append(counter.frame_count)
    return {"graphs": graphs, "apart": worst}


def decoding(name: str) -> dict[str, Any]:
    """Compile prefill and one-token steps with a state."""
    model = small(name)
    compiled, counter = counted(model.step)
    whole, graphs, outputs, state = ids(), [], [], model.new_state(2, LENGTH)
    with torch.no_grad():
        for piece in whole.split([8] + [1] * (LENGTH - 8), dim=1):
            output, state = compiled(piece, state)
            outputs.append(output)
            graphs.append(counter.frame_count)
        worst = apart(torch.cat(outputs, dim=1), model(whole))
    return {"graphs": graphs, "apart": worst}


def checkpointed() -> dict[str, Any]:
    """Compile a model whose every layer is computed again in the backward pass."""
    model = small("first")
    table = model.get_parameter("embedding.weight")

    def loss(inputs: Tensor) -> Tensor:
        x, ctx = model.position(model.embedding(inputs, Context()), Context())
        for layer in model.stack.children():
            x, ctx = checkpoint(layer, x, ctx, use_reentrant=False)
        return model.head.nll(model.norm(x), inputs).mean()

    compiled, counter = counted(loss)
    (got,) = torch.autograd.grad(compiled(ids()), [table])
    (want,) = torch.autograd.grad(model.head.nll(model(ids()), ids()).mean(), [table])
    return {"graphs": counter.frame_count, "apart": apart(got, want)}


TRIALS: dict[str, Trial] = {
    "attention": lambda: training("first"),
    "attention, learned positions": lambda: training("gpt2"),
    "packed documents": lambda: packed("first"),
    "decoding": lambda: decoding("first"),
    "decoding, recurrent": lambda: decoding("lstm_lm"),
    "recurrent": lambda: training("lstm_lm"),
    "recurrent, gru": lambda: training("gru_lm"),
    "recurrent, packed": lambda: packed("lstm_lm"),
    "recurrent, packed, breaks allowed": lambda: packed("lstm_lm", fullgraph=False),
    "checkpointing": checkpointed,
}


def attempt(trial: Trial) -> dict[str, Any]:
    """Run a trial; where dynamo will not have it, say why."""
    try:
        return trial()
    except TorchDynamoException as error:
        return {"refused": str(error).strip().splitlines()[0]}


def seconds(step: Callable[[], Tensor], other: Callable[[], Tensor], rounds: int) -> tuple[float, float]:
    """Return the median time of two steps taken in turns, so that a busy machine troubles both alike."""
    times: tuple[list[float], list[float]] = ([], [])
    for i in range(rounds + 3):
        for run, spent in zip((step, other), times, strict=True):
            start = time.perf_counter()
            run().backward()
            if i >= 3:
                spent.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])


def cost(layers: int, width: int, batch: int, length: int, how: str, rounds: int = 40) -> dict[str, Any]:
    """Time a training step of the composed GPT-2 against one written by hand."""
    heads, vocab = max(1, width // 32), 512
    ours = build("gpt2", layers=layers, width=width, heads=heads, vocab=vocab, context=length)
    plain = PlainGPT(layers, width, heads, vocab, length)
    inputs = torch.randint(vocab, (batch, length))

    def composed(rows: Tensor) -> Tensor:
        assert isinstance(ours, LanguageModel)
        return ours.head.nll(ours(rows), rows).mean()

    def by_hand(rows: Tensor) -> Tensor:
        loss: Tensor = plain(rows, rows)
        return loss

    steps = [composed, by_hand]
    if how == "inductor":
        torch._dynamo.reset()
        steps = [torch.compile(step, fullgraph=True) for step in steps]
    mine, theirs = seconds(lambda: steps[0](inputs), lambda: steps[1](inputs), rounds)
    shape = f"{layers}x{width}, batch {batch}x{length}"
    return {"how": how, "shape": shape, "ms": round(mine * 1e3, 2), "ms_by_hand": round(theirs * 1e3, 2)} | {
        "ratio": round(mine / theirs, 3)
    }


def main() -> None:
    """Run all trials, then the costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inductor", action="store_true", help="compile with inductor too, and time it")
    parser.add_argument("--only", nargs="+", choices=list(TRIALS), help="some trials, and no timing")
    options = parser.parse_args()
    for name in options.only or TRIALS:
        print(json.dumps({"trial": name} | attempt(TRIALS[name])), flush=True)
    if options.only:
        return
    for how in ("eager", "inductor") if options.inductor else ("eager",):
        for layers, width, batch, length in ((4, 32, 1, 16), (4, 128, 12, 64), (4, 256, 8, 128)):
            print(json.dumps({"trial": "cost"} | cost(layers, width, batch, length, how)), flush=True)


if __name__ == "__main__":
    run_main(main)
