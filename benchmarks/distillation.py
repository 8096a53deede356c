"""Distillation of the encoder of benchmarks/text_tasks.py: a student with half of its layers, beside three controls.

    python benchmarks/distillation.py steps OUT [KEY=VALUE...]      measure the steps of the control, on an idle device
    python benchmarks/distillation.py students OUT [KEY=VALUE...] [--seeds 0 1 2] [--labels ...] [--minutes M]
    python benchmarks/distillation.py finetune OUT [KEY=VALUE...] [--seeds 0 1 2] [--minutes M] [--processes 12]
    python benchmarks/distillation.py speed OUT [--device cpu|cuda]
    python benchmarks/distillation.py report OUT

OUT is a folder of text_tasks.py (`tables` or `pack`) with OUT/runs/encoder, the teacher, pre-trained. Fine-tuned are:

    teacher     OUT/runs/encoder (as text_tasks.py fine-tunes it under its label `scratch`: not run twice)
    student     every second layer of it, distilled (`heddle train distill`) on the teacher's own text
    masked      the same layers, trained on masked tokens alone for as many GPU-seconds: the steps are the student's
                times the ratio of the measured step times, the teacher's forward pass included
    untrained   the same layers, not trained any further
    random      the student's shape with random weights

Each student and each `masked` control has a seed of its own, with which it is fine-tuned too. text_tasks.py chooses the
learning rate of each task on validation rows with the first seed, from one grid for all. All parts can be cut off by
`--minutes` and go on with the next call; what is done is not done again. `report` writes OUT/distillation.md and .json.
KEY=VALUE changes all runs of a part.
"""

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from distillation_report import ALIASES, LABELS, TASKS, report
from entry_point import positive, run_main
from results import commit, device, read_lines
from text_task_runs import Line, Start, run_starts

import heddle
from heddle.core import encode
from heddle.core.system import parse_overrides, write_json
from heddle.lm import LM
from heddle.models import count_parameters
from heddle.models.networks import Encoder
from heddle.models.surgery import with_layers
from heddle.recipes import RECIPES
from heddle.training import apply_overrides, measure

LENGTH = 128  # tokens of a row whose speed is measured
MARGIN = 0.3  # minutes before the end in which nothing begins
STEPS = 4000  # of a student
LONGEST, TOKENS = 512, 32768  # of a row at most, and of a step
Overrides = dict[str, Any]


# --- students and their controls --------------------------------------------------------------------------------------


def settings_of(out: Path, label: str, seed: int, given: Overrides) -> Overrides:
    """Return what a student or its control is trained with; the two differ in the objective and the steps alone."""
    encoder = heddle.load(out / "runs" / "encoder", device="cpu").model
    layers = encoder.config.expand().plan.depth()  # type: ignore[attr-defined]
    length = min(LONGEST, encoder.context or LONGEST)
    own = {
        "name": f"{label}-{seed}",
        "seed": seed,
        "init": str(out / "runs" / "encoder"),
        "init_layers": layers // 2,
        "rows.length": length,
        "training.batch": TOKENS // length,
        "training.steps": STEPS,
        "training.schedule.warmup": 200,
        "training.optimizer.learning_rate": 4e-4,
        "every.validate": 1000,
        "every.save": 500,
        "every.sample": 10_000_000,
    }
    more = {"objective": {"kind": "masked_token", "unit": "word"}} if label == "masked" else {}
    return own | given | more


def measured(out: Path, given: Overrides) -> Line:
    """Return what the measured step times depend on: the teacher, and the settings but for where and when."""
    own = settings_of(out, "student", 0, given)
    kept = {key: value for key, value in own.items() if key.split(".")[0] not in ("init", "name", "every", "hardware")}
    return kept | {"teacher": count_parameters(heddle.load(out / "runs" / "encoder", device="cpu").model)}


def masked_steps(out: Path, given: Overrides) -> int:
    """Return how many steps the control takes in the time of the student; measured once, alone on the device."""
    path, settings = out / "distillation_steps.json", measured(out, given)
    known = json.loads(path.read_text()) if path.exists() else {}
    if known.get("settings") != settings:
        seconds = {}
        for label in ("student", "masked"):
            config = apply_overrides(RECIPES["distill"](), settings_of(out, label, 0, given).items())
            seconds[label] = measure(config).seconds_per_step
        steps = int(given.get("training.steps", STEPS))
        known = {"seconds_per_step": seconds, "steps": round(steps * seconds["student"] / seconds["masked"])}
        write_json(path, known | {"settings": settings, "commit": commit(), "device": device()})
        print(json.dumps(known), flush=True)
    return int(known["steps"])


def students(out: Path, given: argparse.Namespace) -> None:
    """Train each student and its control, or go on with them."""
    until = time.time() + 60 * given.minutes
    steps = {"masked": masked_steps(out, given.overrides)}
    finished = out / "distillation_runs.jsonl"
    for seed in given.seeds:
        for label in (label for label in ("student", "masked") if label in given.labels):
            folder = out / "runs" / f"{label}-{seed}"
            if any(line["run"] == folder.name for line in read_lines(finished)):
                continue
            left = (until - time.time()) / 60 - MARGIN
            if left < MARGIN:
                print("the time is over; the next call goes on")
                return
            limit = {"stop.minutes": min(left, 1e6)}
            if (folder / "checkpoints").exists():
                run = heddle.train(folder, overrides=limit)
            else:
                shutil.rmtree(folder, ignore_errors=True)
                more = given.overrides | ({"training.steps": steps[label]} if label in steps else {})
                own = settings_of(out, label, seed, more) | limit
                run = heddle.train("distill", data=out / "text", overrides=own, runs=out / "runs")
            print(f"{folder.name}: {run.step} steps, {'done' if run.stopped is None else run.stopped}", flush=True)
            if run.stopped is None:
                line = {"run": folder.name, "steps": run.step, "commit": commit(), "device": device()}
                with finished.open("a") as file:
                    file.write(json.dumps(line) + "\n")


# --- fine-tuning ------------------------------------------------------------------------------------------------------


def start_of(out: Path, label: str, given: argparse.Namespace) -> Start:
    """Return where the runs of a label begin. The teacher's are those of text_tasks.py, which are not run twice."""
    encoder = str(out / "runs" / "encoder")
    init: dict[int, str | None] = dict.fromkeys(given.seeds, encoder)
    own: Overrides = {}
    if label in ("student", "masked"):
        init = {seed: str(out / "runs" / f"{label}-{seed}") for seed in given.seeds}
    elif label != "teacher":
        config = heddle.load(encoder, device="cpu").model.config
        layers = config.expand().plan.depth() // 2  # type: ignore[attr-defined]
        own = {"init_layers": layers}
        if label == "random":
            init = dict.fromkeys(given.seeds, None)
            own = {"tokenizer": encoder, "model": encode(with_layers(config, layers))}
    rates = tuple(given.rates) if given.rates else None
    return Start(ALIASES.get(label, label), tuple(given.tasks), init, rates, own | given.overrides)


def finetune(out: Path, given: argparse.Namespace) -> None:
    """Fine-tune from all starts side by side; students that are not there yet are left to another call."""
    done = {line["run"] for line in read_lines(out / "distillation_runs.jsonl")}
    starts = [start_of(out, label, given) for label in given.labels]
    missing = {start.label for start in starts for name in start.init.values()
               if start.label in ("student", "masked") and Path(str(name)).name not in done}  # fmt: skip
    for label in sorted(missing):
        print(f"{label}: not trained yet with every seed; left out", flush=True)
    run_starts(
        out,
        [start for start in starts if start.label not in missing],
        given.processes,
        min(given.minutes, 1e6),
        keep=not given.tidy,
    )
    report(out, given.seeds)


# --- speed ------------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def seconds_of(lm: LM, ids: torch.Tensor, rounds: int) -> list[float]:
    """Return the seconds of each pass through the layers, warmed up."""
    assert isinstance(lm.model, Encoder)
    found = []
    for number in range(rounds + 3):
        start = time.perf_counter()
        lm.model.run(ids, lm.model.context_for(torch.full((len(ids),), ids.shape[1], device=ids.device), None))
        if ids.is_cuda:
            torch.cuda.synchronize()
        if number >= 3:
            found.append(time.perf_counter() - start)
    return found


def speed(out: Path, on: str, rounds: int) -> None:
    """Measure teacher and student in turns: one text on one thread of a CPU, or 64 texts on a GPU."""
    torch.set_num_threads(1)
    dtype = "bfloat16" if on == "cuda" else "float32"
    models = {
        name: heddle.load(out / "runs" / run, device=on, dtype=dtype)
        for name, run in (("teacher", "encoder"), ("student", "student-0"))
    }
    draw, vocab = torch.Generator().manual_seed(0), models["teacher"].tokenizer.vocab
    ids = torch.randint(vocab, (64 if on == "cuda" else 1, LENGTH), generator=draw).to(on)
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(5):
        for name, lm in models.items():
            seconds[name] += seconds_of(lm, ids, rounds)
    line = {
        "batch": len(ids),
        "length": LENGTH,
        "dtype": dtype,
        "seconds": {name: [round(float(q), 7) for q in torch.tensor(s).quantile(torch.tensor([0.25, 0.5, 0.75]))]
                    for name, s in seconds.items()},
        "parameters": {name: count_parameters(lm.model) for name, lm in models.items()},
        "commit": commit(),
        "device": device() if on == "cuda" else f"{device()}, one thread of a CPU",
    }  # fmt: skip
    line["times_as_fast"] = round(line["seconds"]["teacher"][1] / line["seconds"]["student"][1], 3)  # type: ignore[index]
    path = out / "distillation_speed.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    write_json(path, known | {on: line})
    print(json.dumps(line))


def main() -> None:
    """Read the command and do it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("steps", "students", "finetune", "speed", "report"))
    parser.add_argument("words", nargs="+", metavar="OUT", help="the folder, then KEY=VALUE")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--labels", nargs="+", choices=LABELS, default=list(LABELS))
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--rates", nargs="+", type=float, help="default: the grid of text_tasks.py")
    parser.add_argument("--minutes", type=float, default=1e9, help="after which all stops, to be resumed")
    parser.add_argument("--processes", type=positive, default=2, help="fine-tuning runs side by side")
    parser.add_argument("--tidy", action="store_true", help="remove fine-tuned checkpoints that nothing opens again")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=positive, default=20, help="passes of each turn of `speed`")
    given = parser.parse_intermixed_args()
    out, *given.words = given.words
    given.overrides = dict(parse_overrides(given.words, {}))
    folder = Path(out).absolute()
    if given.verb == "steps":
        masked_steps(folder, given.overrides)
    elif given.verb == "students":
        students(folder, given)
    elif given.verb == "finetune":
        finetune(folder, given)
    elif given.verb == "speed":
        speed(folder, given.device, given.rounds)
    else:
        report(folder, given.seeds)


if __name__ == "__main__":
    run_main(main)
