"""Training on one GPU beside Hugging Face `transformers`, compiled both, in one run: tokens/s, MFU, memory.

`python benchmarks/h200_train.py` runs every case; `--cases gpt2 llama` some of them; `--tiny` runs anywhere in minutes
and measures nothing of worth. Each case builds the peer, measures it, lets it go, and does the same with ours.
"""

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from baselines import PlainLSTM
from entry_point import run_main
from results import need_gpu, record
from torch import Tensor, nn
from train_step import our_step

from heddle.core.system import Hardware, choose_hardware, peak_flops
from heddle.data.rows import Batch
from heddle.models import forward_flops
from heddle.models.networks import Model
from heddle.models.presets import build
from heddle.nn.quantization import use_float8
from heddle.objectives import SequenceConfig
from heddle.training.loop import Step

CompileMode = Literal["on", "graphs", "off"]
Take = Callable[[], Tensor]  # one step on the next batch, and its loss
WARM = 100  # steps in which the rate grows: a gradient that grows of a sudden is a spike to the guard


@dataclass(frozen=True)
class Case:
    """A shape that both train."""

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    vocab: int
    batch: int
    length: int
    bar: float  # tokens/s over the peer's
    mfu: float | None = None  # the least
    memory: float | None = None  # the most, in GiB
    float8: bool = False  # ours multiplies in eight bits
    graphs: bool = False  # ours is replayed as CUDA graphs: its kernels are short

    @property
    def tokens(self) -> int:
        """Count the targets of a step."""
        return self.batch * self.length


CASES = {
    case.name: case
    for case in (
        Case("gpt2", 12, 768, 12, 12, 3072, 50_257, 64, 1024, 1.25, memory=25.0, graphs=True),
        Case("llama", 16, 2048, 32, 8, 8192, 32_000, 16, 2048, 1.25, mfu=0.6),
        Case("pairs", 6, 512, 8, 8, 2048, 32_000, 256, 128, 1.3, graphs=True),
        Case("lstm", 2, 1024, 1, 1, 1024, 33_280, 128, 256, 1.0),
    )
}
TINY = {
    "gpt2": Case("gpt2", 2, 64, 2, 2, 256, 257, 4, 32, 0.0),
    "llama": Case("llama", 2, 64, 4, 2, 128, 256, 4, 32, 0.0),
    "pairs": Case("pairs", 2, 64, 2, 2, 128, 256, 4, 32, 0.0),
    "lstm": Case("lstm", 2, 64, 1, 1, 64, 256, 4, 32, 0.0),
}


def batches_of(case: Case, device: torch.device, count: int) -> tuple[Tensor, ...]:
    """Return ids in which each token follows from the one before it in one of a few ways: something to learn."""
    draw, number = torch.Generator(device=device).manual_seed(0), count * case.batch
    ids = torch.empty(number, case.length + 1, dtype=torch.long, device=device)
    ids[:, 0] = torch.randint(case.vocab, (number,), generator=draw, device=device)
    turns = torch.randint(4, (number, case.length), generator=draw, device=device)
    for i in range(case.length):
        ids[:, i + 1] = (ids[:, i] * 31 + turns[:, i] * 7 + 11) % case.vocab
    return torch.split(ids, case.batch)


# --- the peers --------------------------------------------------------------------------------------------------------


def hugging_face(case: Case) -> Any:
    """Build the same shape by `transformers`."""
    import transformers as t

    if case.name == "gpt2":
        sizes = {"n_layer": case.layers, "n_embd": case.width, "n_head": case.heads, "n_positions": case.length}
        config = t.GPT2Config(
            vocab_size=case.vocab, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False, **sizes
        )
        return t.GPT2LMHeadModel(config)
    if case.name == "llama":
        config = t.LlamaConfig(
            vocab_size=case.vocab,
            hidden_size=case.width,
            intermediate_size=case.hidden,
            num_hidden_layers=case.layers,
            num_attention_heads=case.heads,
            num_key_value_heads=case.kv_heads,
            max_position_embeddings=case.length,
            use_cache=False,
        )
        return t.LlamaForCausalLM(config)
    config = t.BartConfig(
        vocab_size=case.vocab,
        d_model=case.width,
        encoder_layers=case.layers,
        decoder_layers=case.layers,
        encoder_attention_heads=case.heads,
        decoder_attention_heads=case.heads,
        encoder_ffn_dim=case.hidden,
        decoder_ffn_dim=case.hidden,
        max_position_embeddings=case.length,
        dropout=0.0,
        use_cache=False,
    )
    return t.BartForConditionalGeneration(config)


class Peer(nn.Module):
    """A model of another library with its own loss, in bfloat16 by autocast over weights in float32."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case, self.lstm = case, case.name == "lstm"
        self.model = PlainLSTM(case.layers, case.width, case.vocab) if self.lstm else hugging_face(case)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the mean loss."""
        inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
        with torch.autocast(ids.device.type, torch.bfloat16):
            if self.lstm:
                return self.model(inputs, targets)  # type: ignore[no-any-return]
            if self.case.name == "pairs":
                return self.model(input_ids=inputs, decoder_input_ids=inputs, labels=targets).loss  # type: ignore[no-any-return]
            # its labels are moved by one inside
            return self.model(input_ids=inputs, labels=inputs).loss  # type: ignore[no-any-return]


def peer(case: Case, hardware: Hardware, compiled: bool) -> Take:
    """Return one step of the peer: compiled, fused AdamW, clipped."""
    with hardware.device:
        model = Peer(case)
    if compiled and not model.lstm:  # a compiler would unroll the LSTM; cuDNN's own is the peer
        model.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    source = Source(case, hardware)

    def take() -> Tensor:
        loss: Tensor = model(source())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = 3e-4 * min(1.0, source.number / WARM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return take


class Source:
    """Rows, some batches made ahead and used in turns."""

    def __init__(self, case: Case, hardware: Hardware, count: int = 8) -> None:
        self.batches = batches_of(case, hardware.device, count)
        self.number = 0

    def __call__(self) -> Tensor:
        """Return the next."""
        self.number += 1
        return self.batches[self.number % len(self.batches)]


# --- ours -------------------------------------------------------------------------------------------------------------


def our_model(case: Case) -> Model:
    """Build the same shape by presets."""
    if case.name == "gpt2":
        return build(
            "gpt2", layers=case.layers, width=case.width, heads=case.heads, vocab=case.vocab, context=case.length
        )
    if case.name == "lstm":
        return build("lstm_lm", layers=case.layers, width=case.width, vocab=case.vocab, context=case.length)
    shape = {"layers": case.layers, "width": case.width, "heads": case.heads, "hidden": case.hidden}
    if case.name == "llama":
        return build("llama", kv_heads=case.kv_heads, vocab=case.vocab, context=case.length, **shape)
    return build("bart-base", vocab=case.vocab, context=case.length, **shape)


def our_batch(case: Case, ids: Tensor) -> Batch:
    """Return rows as our objectives want them."""
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    numbers = torch.arange(len(ids), device=ids.device)
    source = inputs if case.name == "pairs" else None
    return Batch(inputs, targets, torch.ones_like(inputs, dtype=torch.float32), numbers, source=source)


@dataclass
class Ours:
    """A model of ours, and its steps as a run takes them, guard and all."""

    case: Case
    model: Model
    step: Step
    source: Source
    mode: CompileMode  # it is compiled

    def __call__(self) -> Tensor:
        """Take one step on the next batch."""
        self.step.optimizers.set_learning_rate(min(1.0, (self.source.number + 1) / WARM))
        return self.step(our_batch(self.case, self.source()), 0, self.case.tokens).loss

    @property
    def skipped(self) -> int:
        """Count the steps that the guard found bad: they moved nothing, and their time is not a step's."""
        return int(self.step.guard.skipped)


def ours(case: Case, hardware: Hardware, compiled: bool, batches: int = 8) -> Ours:
    """Build the shape and its step."""
    with hardware.device:
        model = our_model(case)
    if case.float8:
        use_float8(model)
    objective = SequenceConfig() if case.name == "pairs" else None
    mode: CompileMode = "off" if not (compiled and model.should_compile()) else "graphs" if case.graphs else "on"
    step = our_step(model, case.batch, hardware, mode, objective)
    return Ours(case, model, step, Source(case, hardware, batches), mode)


# --- measuring --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Speed:
    """What was seen of one side."""

    tokens: float  # a second, the median over turns
    spread: tuple[float, float]  # quartiles
    memory: float  # GiB at the peak
    compile: float  # seconds to the end of the second step
    losses: list[float]


def measuring(tiny: bool) -> Hardware:
    """Return what to measure on: a GPU, unless all is tiny."""
    need_gpu(tiny)
    return choose_hardware()


def wait(hardware: Hardware) -> None:
    """Let the device finish."""
    if hardware.device.type == "cuda":
        torch.cuda.synchronize(hardware.device)


def measure(take: Take, case: Case, hardware: Hardware, steps: int, turn: int = 5) -> Speed:
    """Warm up, then time some steps at a time."""
    if hardware.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(hardware.device)
    start = time.perf_counter()
    losses = [take(), take()]
    wait(hardware)
    warm, speeds = time.perf_counter() - start, []
    losses += [take() for _ in range(3)]
    for _ in range(max(2, steps // turn)):
        wait(hardware)
        begin = time.perf_counter()
        losses += [take() for _ in range(turn)]
        wait(hardware)
        speeds.append(turn * case.tokens / (time.perf_counter() - begin))
    low, middle, high = statistics.quantiles(speeds, n=4)
    memory = torch.cuda.max_memory_allocated(hardware.device) / 2**30 if hardware.device.type == "cuda" else 0.0
    return Speed(middle, (low, high), memory, warm, [loss.item() for loss in losses])


def forget(hardware: Hardware) -> None:
    """Give memory back before the other side begins."""
    gc.collect()
    torch._dynamo.reset()
    if hardware.device.type == "cuda":
        torch.cuda.empty_cache()


def bare_product(hardware: Hardware, side: int = 8192, seconds: float = 1.5) -> float:
    """Return FLOP/s of one product of two square matrices again and again: what the chip's power allows just now."""
    if hardware.device.type != "cuda":
        side = 256
    left, right = (torch.randn(side, side, device=hardware.device, dtype=torch.bfloat16) for _ in range(2))
    done, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        for _ in range(20):
            left @ right
        wait(hardware)
        done += 20
    return done * 2 * side**3 / (time.perf_counter() - begin)


def compare(case: Case, hardware: Hardware, steps: int, compiled: bool, alone: bool = False) -> bool:
    """Measure the peer, then ours; print, record, and tell whether the bars are reached."""
    theirs = None
    if not alone:
        theirs = measure(peer(case, hardware, compiled), case, hardware, steps)
        forget(hardware)
    take = ours(case, hardware, compiled)
    mine = measure(take, case, hardware, steps)
    flops, skipped, mode = 3 * forward_flops(take.model, case.length), take.skipped, take.mode
    del take
    forget(hardware)
    bare = bare_product(hardware)
    mfu = mine.tokens * flops / peak_flops(hardware)
    ratio = None if theirs is None else mine.tokens / theirs.tokens
    passed = (
        (ratio is None or ratio >= case.bar)
        and (case.mfu is None or mfu >= case.mfu)
        and (case.memory is None or mine.memory <= case.memory)
        and not skipped
    )
    report = {
        "ours": round(mine.tokens),
        "spread": [round(x) for x in mine.spread],
        "mfu": round(mfu, 4),
        "bare_product": round(bare / peak_flops(hardware), 4),
        "memory": round(mine.memory, 2),
        "compile": round(mine.compile, 1),
        "loss": round(mine.losses[-1], 4),
        "skipped": skipped,
    }
    if theirs is not None:
        report |= {
            "peer": round(theirs.tokens),
            "peer_spread": [round(x) for x in theirs.spread],
            "peer_memory": round(theirs.memory, 2),
            "peer_compile": round(theirs.compile, 1),
            "peer_loss": round(theirs.losses[-1], 4),
            "ratio": round(mine.tokens / theirs.tokens, 3),
        }
    print(f"train {case.name}: {'pass' if passed else 'MISSED'} (bar {case.bar}); {report}", flush=True)
    if case.bar:
        name = f"train {case.name}{', float8' if case.float8 else ''}{'' if compiled else ', eager'}"
        record(name, mode=mode, **report, bar=case.bar)
    return passed


def main() -> None:
    """Measure every case requested; fail when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES, help="all, if none is named")
    parser.add_argument("--steps", type=int, default=40, help="that are timed")
    parser.add_argument("--tiny", action="store_true", help="toy sizes, anywhere")
    parser.add_argument("--eager", action="store_true", help="compile neither")
    parser.add_argument("--alone", action="store_true", help="ours only")
    parser.add_argument("--graphs", choices=["on", "off"], help="replay ours as CUDA graphs, whatever the case says")
    parser.add_argument("--float8", action="store_true", help="ours multiplies in floats of eight bits")
    words = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    hardware = measuring(words.tiny)
    known = {n: replace(c, float8=words.float8) for n, c in (TINY if words.tiny else CASES).items()}
    if words.graphs:
        known = {n: replace(c, graphs=words.graphs == "on") for n, c in known.items()}
    missed = [
        name
        for name in words.cases
        if not compare(known[name], hardware, words.steps, compiled=not words.eager, alone=words.alone)
    ]
    if missed:
        raise SystemExit(f"bars missed: {', '.join(missed)}")


if __name__ == "__main__":
    run_main(main)
