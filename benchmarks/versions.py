"""Two checkouts of Heddle side by side, interleaved: is the new one as fast as the old one?

    python benchmarks/versions.py OLD NEW [--what train-cpu decode-cpu train-gpu decode-gpu] [--rounds 5] [--json FILE]

Both checkouts build the same shape and warm up; then they are measured in turns, in processes of their own. Printed
for each kind of work: the median of the rounds, the spread of each, and the ratio new / old. Training takes the steps
of the checkout's own benchmarks/train_cpu.py and benchmarks/h200_train.py; decoding goes through `LM.generate_ids`.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

WORK = {"train-cpu": "cpu", "decode-cpu": "cpu", "train-gpu": "cuda", "decode-gpu": "cuda"}
LLAMA_1B = {"layers": 16, "width": 2048, "heads": 32, "kv_heads": 8, "hidden": 8192, "vocab": 32_000, "context": 1024}
SMOLLM = {"layers": 30, "width": 576, "heads": 9, "kv_heads": 3, "hidden": 1536, "vocab": 49_152, "context": 2048}
TINY = {"layers": 2, "width": 32, "heads": 4, "kv_heads": 2, "hidden": 64, "vocab": 64, "context": 64}
Round = Callable[[], float]  # measures once and returns tokens per second


# --- in a process of one checkout -------------------------------------------------------------------------------------


def benchmark(new: str, old: str) -> Any:
    """Import a benchmark of the checkout by its name now, or by the one that it had before it was renamed."""
    return importlib.import_module(new if importlib.util.find_spec(new) else old)


def training_on_cpu(tiny: bool) -> Round:
    """Return rounds of training steps of a 6x384 GPT."""
    import torch

    cpu = benchmark("train_cpu", "cpu")
    shape = (
        cpu.Shape("tiny", 2, 32, 2, 64, 2, 16, 0, False) if tiny else cpu.Shape("", 6, 384, 6, 4096, 16, 256, 0, False)
    )
    ids = torch.randint(0, shape.vocab, (shape.batch, shape.length + 1), generator=torch.Generator().manual_seed(0))
    step = cpu.ours(shape, ids, vars(cpu)["choose_hardware"]("cpu"))
    return lambda: rate(step, 6, shape.batch * shape.length)


def training_on_gpu(tiny: bool) -> Round:
    """Return rounds of training steps of GPT-2 124M at its published size, compiled."""
    import torch

    h200 = benchmark("h200_train", "h200")
    case = (h200.TINY if tiny else h200.CASES)["gpt2"]
    step = h200.ours(case, h200.measuring(tiny), not tiny)

    def steps() -> None:
        for _ in range(1 if tiny else 20):
            step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return lambda: rate(steps, 1, case.tokens * (1 if tiny else 20))


def decoding(device: str, tiny: bool, batch: int, new: int) -> Round:
    """Return rounds of greedy decoding of a Llama shape: 1 B parameters on a GPU, SmolLM2's on a CPU."""
    import torch

    import heddle
    from heddle.lm import LM

    sizes = TINY if tiny else (SMOLLM if device == "cpu" else LLAMA_1B)
    with torch.device(device):
        model = heddle.build("llama", **sizes)
    lm = LM(model.to(torch.bfloat16).eval(), None)
    draw = torch.Generator().manual_seed(batch)
    prompts = torch.randint(sizes["vocab"], (batch, 8 if tiny else 256), generator=draw).tolist()
    return lambda: rate(lambda: lm.generate_ids(prompts, max_tokens=new), 1, batch * new)


def rate(work: Callable[[], object], times: int, tokens: int) -> float:
    """Return tokens per second of some work done a few times."""
    start = time.perf_counter()
    for _ in range(times):
        work()
    return tokens * times / (time.perf_counter() - start)


def serve(what: str, tiny: bool, batch: int) -> None:
    """Build, warm up, then measure once for each line that comes in."""
    rounds = {
        "train-cpu": lambda: training_on_cpu(tiny),
        "train-gpu": lambda: training_on_gpu(tiny),
        "decode-cpu": lambda: decoding("cpu", tiny, batch, 8 if tiny else 64),
        "decode-gpu": lambda: decoding("cpu" if tiny else "cuda", tiny, batch, 8 if tiny else 512),
    }[what]()
    rounds(), rounds()
    print("ready", flush=True)
    for _ in sys.stdin:
        print(rounds(), flush=True)


# --- in the process that compares -------------------------------------------------------------------------------------


def start(checkout: Path, what: str, args: argparse.Namespace, batch: int) -> subprocess.Popen[str]:
    """Start a process of one checkout: its own library and its own benchmarks."""
    path = os.pathsep.join([str(checkout / "src"), str(checkout / "benchmarks"), os.environ.get("PYTHONPATH", "")])
    words = [sys.executable, str(Path(__file__).resolve()), "--serve", what, "--batch", str(batch)]
    return subprocess.Popen(
        words + ["--tiny"] * args.tiny,
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def answer(child: subprocess.Popen[str]) -> str:
    """Return the next line of a process."""
    out: IO[str] | None = child.stdout
    line = out.readline() if out is not None else ""
    if not line:
        raise SystemExit("a checkout's process ended; its message is above")
    return line.strip()


def compare(what: str, args: argparse.Namespace, batch: int) -> dict[str, object]:
    """Measure both checkouts in turns; print and return what was found."""
    children = {"old": start(args.old, what, args, batch), "new": start(args.new, what, args, batch)}
    for child in children.values():
        answer(child)
    speeds: dict[str, list[float]] = {name: [] for name in children}
    for number in range(args.rounds):
        for name in list(children)[:: 1 if number % 2 else -1]:
            stdin = children[name].stdin
            assert stdin is not None
            stdin.write("go\n")
            stdin.flush()
            speeds[name].append(float(answer(children[name])))
    for child in children.values():
        child.kill()
    middle = {name: statistics.median(values) for name, values in speeds.items()}
    spread = {name: (max(values) - min(values)) / middle[name] for name, values in speeds.items()}
    ratio = middle["new"] / middle["old"]
    label = f"{what}, batch {batch}" if what.startswith("decode") else what
    fine = abs(ratio - 1) <= max(0.03, *spread.values())
    print(
        f"{label}: old {middle['old']:,.0f} tokens/s (spread {spread['old']:.1%}), new {middle['new']:,.0f} "
        f"({spread['new']:.1%}), new / old {ratio:.3f}: {'pass' if fine else 'OTHER SPEED'}",
        flush=True,
    )
    return {"what": label, "old": speeds["old"], "new": speeds["new"], "ratio": ratio, "spread": spread, "pass": fine}


def main() -> None:
    """Compare two checkouts, or serve the comparison as one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, nargs="?", help="a checkout")
    parser.add_argument("new", type=Path, nargs="?", help="another")
    parser.add_argument("--what", nargs="+", choices=list(WORK), default=["train-cpu", "decode-cpu"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the rounds here")
    parser.add_argument("--tiny", action="store_true", help="run anywhere in seconds; measures nothing of worth")
    parser.add_argument("--serve", choices=list(WORK), help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, default=1, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        sys.path.pop(0)  # this script's own folder: the checkout's is in PYTHONPATH
        serve(args.serve, args.tiny, args.batch)
        return
    if args.old is None or args.new is None:
        raise SystemExit("want two checkouts: python benchmarks/versions.py OLD NEW")
    args.old, args.new = args.old.resolve(), args.new.resolve()
    found = []
    for what in args.what:
        for batch in (1, 64) if what == "decode-gpu" else (1,):
            found.append(compare(what, args, batch))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
