"""On a GPU: the same answers as on a CPU, bad steps skipped on the device, half precision, resumed runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cli.runs import config
from reliability.harness import tiny, write_config, write_text

from heddle.cli.main import main
from heddle.data.rows import Batch
from heddle.decoding.generation import GenerationConfig, generate
from heddle.models.presets import build, preset
from heddle.objectives import NextTokenConfig
from heddle.training.loop import Guard, GuardConfig, ModelWithLoss, ProcessGroup, Step
from heddle.training.optimizers import (
    AdafactorConfig,
    AdamWConfig,
    MuonConfig,
    OptimizerConfig,
    SGDConfig,
    optimizers,
)
from heddle.training.optimizers.adafactor import Adafactor, AdafactorOptions
from heddle.training.optimizers.muon import Muon

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
FAMILIES = ["first", "gpt2", "window_lm", "rnn_lm", "gru_lm", "lstm_lm", "awd_lstm", "mogrifier_lm", "qrnn_lm"]
GPU = torch.device("cuda")
OPTIMIZERS = [AdamWConfig(), AdafactorConfig(), MuonConfig(), SGDConfig(learning_rate=0.1, momentum=0.9)]


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_and_greedy_texts_are_those_of_the_cpu(name: str) -> None:
    model = config(name).build(1).eval()
    ids = torch.randint(0, 257, (3, 40), generator=torch.Generator().manual_seed(0))
    prompts, generation = ids[:, :7].tolist(), GenerationConfig(max_tokens=12)
    logits, texts = model.logits(ids), generate(model, prompts, generation)
    model.to(GPU)
    assert torch.allclose(model.logits(ids.to(GPU)).cpu(), logits, atol=2e-4)
    assert generate(model, prompts, generation) == texts


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_bad_step_changes_nothing_on_the_device(optimizer: OptimizerConfig) -> None:
    model = build("first", layers=1, width=32, heads=2, vocab=50, context=16).to(GPU)
    guard = Guard.start(GuardConfig(), GPU)
    step = Step(
        ModelWithLoss(model, NextTokenConfig()),
        model,
        optimizer.build(model),
        guard,
        None,
        ProcessGroup(),
        0,
        1.0,
        2,
        [None],
    )
    ids = torch.randint(0, 50, (2, 17), device=GPU)
    good = Batch(ids[:, :-1], ids[:, 1:], torch.ones(2, 16, device=GPU), torch.arange(2, device=GPU))
    bad = Batch(good.inputs, good.targets, torch.full((2, 16), torch.nan, device=GPU), good.rows)
    for number in range(3):
        step(good, number, 32)
    before = {n: t.clone() for n, t in (model.weights() | step.optimizers.tensors()).items()}
    assert bool(step(bad, 3, 32).bad) and int(guard.skipped) == 1
    after = model.weights() | step.optimizers.tensors()
    assert all(torch.equal(before[n], after[n]) for n in before)
    step(good, 4, 32)
    assert all(torch.isfinite(t).all() for t in model.weights().values())


@pytest.mark.parametrize("large", [1 << 20, 1 << 8])  # with our own kernel for no tensor, and for most
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_clipped_step_is_that_of_the_cpu(
    optimizer: OptimizerConfig, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimizers, "MIN_KERNEL_ELEMENTS", large)
    ids = torch.randint(0, 50, (2, 17), generator=torch.Generator().manual_seed(0))
    found = []
    for device in (torch.device("cpu"), GPU):
        model = build("first", layers=1, width=32, heads=2, vocab=50, context=16).to(device)
        guard, parts = Guard.start(GuardConfig(), device), optimizer.build(model)
        for muon in [one for one in parts.optimizers if isinstance(one, Muon)]:
            muon.dtype = torch.float64  # roundings are blown up where it is flat
        step = Step(
            ModelWithLoss(model, NextTokenConfig()), model, parts, guard, None, ProcessGroup(), 0, 0.01, 2, [None]
        )
        batch = Batch(ids[:, :-1], ids[:, 1:], torch.ones(2, 16), torch.arange(2)).to(device)
        assert step(batch, 0, 32).norm > 0.1  # far above the clip
        step(batch, 1, 32)
        found.append({name: weight.cpu() for name, weight in (model.weights() | parts.tensors()).items()})
    assert found[0].keys() == found[1].keys()
    for name, mine in found[1].items():
        assert torch.allclose(mine, found[0][name], atol=1e-3 * float(mine.abs().max() + 1e-6)), name


def test_adafactor_is_captured_in_a_cuda_graph_and_replayed() -> None:
    found = []
    for captured in (False, True):
        draw = torch.Generator().manual_seed(0)
        weights = [torch.nn.Parameter(torch.randn(shape, generator=draw).to(GPU)) for shape in ((8, 6), (8, 6), (5,))]
        adafactor = Adafactor(weights, 0.03, AdafactorOptions(1.0, 0.8, 1e-30), 1e-3)
        adafactor.found_inf, adafactor.grad_scale = torch.zeros((), device=GPU), torch.ones((), device=GPU)
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=draw).to(GPU)
        adafactor.step()  # state is made outside of the graph
        graph = torch.cuda.CUDAGraph()
        if captured:
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                adafactor.step()
        for number in range(4):
            for weight in weights:
                weight.grad.copy_(torch.randn(weight.shape, generator=draw))  # type: ignore[union-attr]
            adafactor.found_inf.fill_(float(number == 2))
            graph.replay() if captured else adafactor.step()
        found.append([weight.detach().cpu() for weight in weights])
    assert all(torch.equal(eager, replayed) for eager, replayed in zip(*found, strict=True))


# In a process of its own, for the shape checks of tests cannot be traced.
SPANS_AS_GRAPHS = """
import json, sys
import torch
from torch._dynamo.utils import counters
from torch._inductor import cudagraph_trees
from heddle.core import replace
from heddle.recipes import RECIPES
from heddle.models.presets import PresetConfig
from heddle.training import HardwareConfig, build_dry_run
from heddle.training.optimizers import AdafactorConfig

config = RECIPES["t5"]()
model = PresetConfig(name=sys.argv[1], layers=1, width=64, heads=2, hidden=96, vocab=512)
training = replace(config.training, batch=4, optimizer=AdafactorConfig())
losses = []
for compile in ("off", "graphs"):
    hardware = HardwareConfig(device="cuda", dtype="float32", compile=compile)
    run = build_dry_run(replace(config, model=model, training=training, hardware=hardware))
    batches = [run.draw(number) for number in range(12)]
    losses.append([float(run.step(b.to("cuda"), n, b.tokens).loss) for n, b in enumerate(batches)])
replays = cudagraph_trees.get_container(torch.cuda.current_device()).tree_manager is not None
print(json.dumps({"losses": losses, "skips": counters["inductor"]["cudagraph_skips"], "graphs": replays}))
"""


@pytest.mark.parametrize("name", ["t5.1.1-small", "narang/vanilla-transformer"])
def test_span_corruption_is_replayed_as_cuda_graphs_to_the_same_losses(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", SPANS_AS_GRAPHS, name], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    plain, graphs = found["losses"]
    assert graphs == pytest.approx(plain, rel=2e-3) and graphs[-1] != graphs[0]
    assert found["graphs"] and not found["skips"], found


@pytest.mark.parametrize("name", FAMILIES)
def test_a_run_trains_in_half_precision_and_goes_on(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path / "tiny.yaml", tiny(write_text(tmp_path / "text.txt")))
    dials = {"width": 32, "layers": 1, "heads": 2}
    known = "".join(
        f", {scheduled}: {size}" for scheduled, size in dials.items() if scheduled in preset(name).option_names
    )
    words = [f"model={{kind: preset, name: {name}{known}}}", "training.steps=4", "every.save=2"]
    # the shape checks of the tests cannot be traced, so compiled training is left to the record runs
    hardware = ["hardware={device: cuda, dtype: bfloat16, compile: 'off'}"]
    assert main(["train", "tiny.yaml", *words, *hardware, "name=run"]) == 0
    assert main(["train", "runs/run", "training.steps=6"]) == 0
    lines = [json.loads(line) for line in Path("runs/run/metrics.jsonl").read_text().splitlines()]
    assert max(line["step"] for line in lines) == 6
