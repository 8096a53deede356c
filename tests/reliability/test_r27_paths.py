"""R27: the same odds and the same greedy tokens by every path, for every preset and for random small models.

Run as a script, this file is the compiler's process: the shape checks that tests switch on cannot be traced.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from laws.cases import VOCAB, Case, Given, loud
from laws.laws import embedded
from reliability.configs import CONTEXT, presets, random_case

from heddle.core import replace
from heddle.decoding.generation import GenerationConfig, complete
from heddle.decoding.runtime import PrefixCache, Request, pad_rows
from heddle.decoding.speculative import LookupDraft, ModelDraft, speculate
from heddle.models.networks import AutoregressiveModel, EncoderDecoder
from heddle.nn.base import Context
from heddle.nn.state import Memory

LENGTHS = (23, 8, 1)  # tokens of each row; the first goes round in the caches of narrow windows
NEW = 6
SOURCES = ([7, 3, 9, 1, 4], [5], [7, 3, 9, 1, 4])
WITHIN = {torch.float32: 1e-4, torch.float64: 1e-10}


@dataclass
class Tally:
    """What was found over all models."""

    models: int = 0
    tokens: int = 0
    equal: int = 0
    influence: float = 0.0  # of packed neighbours
    worst: dict[torch.dtype, float] = field(default_factory=lambda: {torch.float32: 0.0, torch.float64: 0.0})
    failures: list[str] = field(default_factory=list)

    def near(self, name: str, path: str, left: Tensor, right: Tensor) -> None:
        """Hold two results against each other; large ones relative to their size."""
        apart = ((left - right).abs() / right.abs().clamp(min=1)).max().item() if left.numel() else 0.0
        self.worst[left.dtype] = max(self.worst[left.dtype], apart)
        if not apart <= WITHIN[left.dtype]:
            self.failures.append(f"{name}, {left.dtype}, {path}: {apart:.3g} apart")

    def same(self, name: str, path: str, left: list[int], right: list[int]) -> None:
        """Hold greedy tokens against each other."""
        self.tokens += len(right)
        self.equal += sum(a == b for a, b in zip(left, right, strict=False))
        if left != right:
            self.failures.append(f"{name}, {path}: {left} is not {right}")


def rows(seed: int = 0) -> list[list[int]]:
    """Draw rows, of which the second begins as the first does."""
    draw = torch.Generator().manual_seed(seed)
    found = [torch.randint(VOCAB, (length,), generator=draw).tolist() for length in LENGTHS]
    found[1][:6] = found[0][:6]
    return found


def memory_of(model: AutoregressiveModel, which: list[int]) -> Memory | None:
    """Return what an encoder understands of some rows' sources, read together."""
    return model.encode(*pad_rows([SOURCES[i] for i in which], torch.device("cpu"))) if _reads(model) else None


def _reads(model: AutoregressiveModel) -> bool:
    return isinstance(model, EncoderDecoder)


# --- paths to the odds of given rows ----------------------------------------------------------------------------------

Path_ = Callable[[AutoregressiveModel, list[list[int]]], list[Tensor]]


def alone(model: AutoregressiveModel, given: list[list[int]]) -> list[Tensor]:
    """Read each row by itself, with no state: what all other paths must give."""
    return [model.logits(torch.tensor([row]), Context(memory=memory_of(model, [i])))[0] for i, row in enumerate(given)]


def by_cache(model: AutoregressiveModel, given: list[list[int]]) -> list[Tensor]:
    """Read each row token by token."""
    return [_read(model, [i], [row], 1)[0] for i, row in enumerate(given)]


def by_batch(model: AutoregressiveModel, given: list[list[int]]) -> list[Tensor]:
    """Read all rows side by side into a state."""
    return _read(model, list(range(len(given))), given, CONTEXT)


def by_chunks(model: AutoregressiveModel, given: list[list[int]]) -> list[Tensor]:
    """Read all rows side by side, a few tokens at a time."""
    return _read(model, list(range(len(given))), given, 7)


def _read(model: AutoregressiveModel, which: list[int], given: list[list[int]], chunk: int) -> list[Tensor]:
    ids, _ = pad_rows(given, torch.device("cpu"))
    lengths = torch.tensor([len(row) for row in given])
    memory = memory_of(model, which)
    if memory is None:
        state = model.new_state(len(given), int(lengths.max()))
    else:
        assert isinstance(model, EncoderDecoder)
        state = model.initial_state(memory, int(lengths.max()))
    outputs = []
    for start in range(0, ids.shape[1], chunk):
        piece = ids[:, start : start + chunk]
        vectors, state = model.step(piece, state, lengths=(lengths - start).clamp(0, piece.shape[1]))
        outputs.append(vectors)
    scores = model.head.logits(torch.cat(outputs, 1))
    return [scores[i, :n] for i, n in enumerate(lengths.tolist())]


def by_padding(model: AutoregressiveModel, given: list[list[int]]) -> list[Tensor]:
    """Read all rows side by side with no state, padding a document of its own."""
    longest = max(map(len, given))
    ids = torch.tensor([[*row, *[VOCAB - 1] * (longest - len(row))] for row in given])
    documents = torch.tensor([[0] * len(row) + [1] * (longest - len(row)) for row in given])
    scores = model.logits(ids, Context(documents=documents, memory=memory_of(model, [0, 1, 2])))
    return [scores[i, : len(row)] for i, row in enumerate(given)]


def by_packing(model: AutoregressiveModel, given: list[list[int]]) -> list[Tensor]:
    """Read all rows as documents of one."""
    ids, ctx = packed(model, given)
    return list(model.logits(ids, ctx)[0].split([len(row) for row in given]))


def packed(model: AutoregressiveModel, given: list[list[int]]) -> tuple[Tensor, Context]:
    """Return rows as documents of one row; all have the first one's source."""
    documents = torch.tensor([[n for n, row in enumerate(given) for _ in row]])
    positions = torch.tensor([[place for row in given for place in range(len(row))]])
    ctx = Context(documents=documents, positions=positions, memory=memory_of(model, [0]))
    return torch.tensor([[id for row in given for id in row]]), ctx


def influence(model: AutoregressiveModel, given: list[list[int]]) -> float:
    """Return the largest gradient that any document owes to another."""
    side: Any = model.decoder if isinstance(model, EncoderDecoder) else model
    ids, ctx = packed(model, given)
    with torch.enable_grad(), embedded(side) as caught:
        vectors = model(ids, ctx)
        outputs = vectors[0].split([len(row) for row in given])
        found = 0.0
        for number, own in enumerate(outputs):
            (gradient,) = torch.autograd.grad(own.sin().sum(), caught[0], retain_graph=True)
            others = ctx.documents[0] != number  # type: ignore[index]
            found = max(found, gradient[0, others].abs().max().item())
    return found


# --- paths to greedy tokens -------------------------------------------------------------------------------------------


def requests(model: AutoregressiveModel, given: list[list[int]]) -> list[Request]:
    """Return rows to go on from."""
    return [Request(row, SOURCES[i] if _reads(model) else None) for i, row in enumerate(given)]


def reread(model: AutoregressiveModel, given: list[list[int]]) -> list[list[int]]:
    """Write in the plainest way: read everything anew for each token."""
    found = []
    for i, row in enumerate(given):
        ids, memory = list(row), memory_of(model, [i])
        for _ in range(NEW):
            ids.append(int(model.logits(torch.tensor([ids]), Context(memory=memory))[0, -1].argmax()))
        found.append(ids[len(row) :])
    return found


def written(model: AutoregressiveModel, given: list[list[int]]) -> Iterator[tuple[str, list[list[int]]]]:
    """Yield what each path writes."""
    asked, config = requests(model, given), GenerationConfig(max_tokens=NEW)
    prefix_cache = PrefixCache(model)
    yield "alone", [complete(model, [one], config)[0].ids for one in asked]
    yield "batch", [one.ids for one in complete(model, asked, config)]
    yield "chunks", [one.ids for one in complete(model, asked, replace(config, chunk=5))]
    for turn in ("first", "second"):
        yield f"prefixes, {turn}", [one.ids for one in complete(model, asked, config, prefix_cache=prefix_cache)]
    for draft in (LookupDraft(ahead=3), ModelDraft(model=model, ahead=3)):
        found: list[list[int]] = [[] for _ in asked]
        for step in speculate(model, asked, config, draft):
            assert step.id is not None
            found[step.row].append(step.id)
        yield f"guessed by {type(draft).__name__}", found


# --- the trial --------------------------------------------------------------------------------------------------------


def shown(case: Case, dtype: torch.dtype) -> AutoregressiveModel:
    """Build a model whose every weight has its say.

    In double precision all weights are large. In single precision they are the model's own first ones and some noise:
    without norms, large ones make scores in the thousands, of which no two ways of adding agree to many digits.
    """
    if dtype is torch.float64:
        made = loud(case.config)
        return made.model if isinstance(made, Given) else made  # type: ignore[no-any-return]
    model: AutoregressiveModel = case.config.build().eval()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=draw)
    return model


@torch.no_grad()
def try_case(case: Case, tally: Tally) -> None:
    """Take every path through one model."""
    given = rows()
    paths: list[Path_] = [by_cache, by_batch, by_chunks]
    for dtype in WITHIN:
        model = shown(case, dtype)
        wanted = alone(model, given)
        for path in [*paths, by_padding] if case.packs else paths:
            for found, want in zip(path(model, given), wanted, strict=True):
                tally.near(case.name, path.__name__, found, want)
        if case.packs:
            memory = memory_of(model, [0])
            apart = [model.logits(torch.tensor([row]), Context(memory=memory))[0] for row in given]
            for found, want in zip(by_packing(model, given), apart, strict=True):
                tally.near(case.name, "by_packing", found, want)
        if dtype is torch.float64 and case.packs:
            tally.influence = max(tally.influence, influence(model, given))
        plain = reread(model, given)
        for path_, found_ in written(model, given):
            for left, right in zip(found_, plain, strict=True):
                tally.same(case.name, f"{path_}, {dtype}", left, right)
    tally.models += 1


def judge(tally: Tally, extra: str = "") -> None:
    """Say what was found, and fail where it is not as it should be."""
    worst = ", ".join(f"{str(dtype)[6:]} within {apart:.1g}" for dtype, apart in tally.worst.items())
    tokens = f"{tally.equal:,}/{tally.tokens:,} greedy tokens equal"
    print(f"R27: {tally.models} models: {tokens}, {worst}, packed influence {tally.influence:g}{extra}")
    assert not tally.failures, "\n".join(tally.failures[:20])
    assert tally.influence == 0.0


def test_a_few_models_give_the_same_by_every_path() -> None:
    tally = Tally()
    names = ("preset=mistral", "preset=lstm_lm", "preset=transformer")
    for case in [*(c for c in presets() if c.name in names), random_case(7)]:
        try_case(case, tally)
    judge(tally)


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_every_preset_and_a_hundred_random_models_give_the_same_by_every_path(tmp_path: Path) -> None:
    tally = Tally()
    for case in presets() + [random_case(n) for n in range(100)]:
        try_case(case, tally)
    judge(tally, f", compiled {compiled(tmp_path)}")


# --- compiled ---------------------------------------------------------------------------------------------------------

COMPILED = ("preset=gpt2", "preset=mistral", "preset=mixtral", "preset=transformer")


def compiled(folder: Path) -> str:
    """Compile a few models in a process of their own, with one cache for all; return how far they are apart."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder)}
    command = [sys.executable, __file__]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    apart = {name: worst for name, worst in map(json.loads, done.stdout.splitlines())}
    assert apart.keys() == set(COMPILED)
    assert max(apart.values()) <= WITHIN[torch.float32], apart
    return f"{len(apart)} within {max(apart.values()):.1g}"


@torch.no_grad()
def main() -> None:
    """Print how far each compiled model is from itself."""
    torch.set_num_threads(1)
    for case in (c for c in presets() if c.name in COMPILED):
        model, given = shown(case, torch.float32), torch.tensor([rows()[0]])
        ctx = Context(memory=memory_of(model, [0]))
        plain = model(given, ctx)
        fast = torch.compile(model, fullgraph=True)(given, ctx)
        apart = ((fast - plain).abs() / plain.abs().clamp(min=1)).max().item()
        print(json.dumps([case.name, apart]))


if __name__ == "__main__":
    main()
