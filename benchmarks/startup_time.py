"""Second start: from the start of a process to the end of its first compiled step, with nothing kept, then again.

    python benchmarks/startup_time.py [RECIPE KEY=VALUE ...] [--starts 3] [--profile FILE]

Each start is a process of its own that shares nothing with the others but a cache of compiled code, empty at first.
Reported for each run: seconds until everything is imported, until the model stands on its device, until the end of the
first step; and what of the tracing and of the kernels was found in the cache. `--profile` writes where one more start
spends its time.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

BAR = 25.0  # seconds of a second start on one H200
GPT2 = ["gpt2", "training.batch=64", "training.micro_batch=64"]
BEGAN = "HEDDLE_BENCH_BEGAN"  # when the process was started


def start(words: list[str], profile: Path | None) -> dict[str, Any]:
    """Be one start: take the first step of a recipe, and return what it took."""
    marks, began = dict[str, float](), float(os.environ[BEGAN])
    with contextlib.ExitStack() as stack:
        if profile is not None:
            stack.enter_context(profiled(profile))
        from torch._dynamo.utils import counters

        from heddle.core.system import parse_overrides
        from heddle.recipes import RECIPES
        from heddle.training import build_dry_run, resolve_run

        config = resolve_run(words[0], parse_overrides(words[1:]), Path("runs"), RECIPES).config
        marks["imported"] = time.time() - began
        run = build_dry_run(config)
        run.wait()
        marks["built"] = time.time() - began
        run.take()
        run.wait()
        marks["stepped"] = time.time() - began
    kept = {f"traced_{what}": counters["aot_autograd"][f"autograd_cache_{what}"] for what in ("hit", "miss", "bypass")}
    kept |= {f"kernels_{what}": counters["inductor"][f"fxgraph_cache_{what}"] for what in ("hit", "miss", "bypass")}
    report = {name: round(seconds, 1) for name, seconds in marks.items()}
    return report | kept | {"compiled": run.compiled, "device": run.hardware.device.type}


@contextlib.contextmanager
def profiled(file: Path) -> Any:
    """Write down which functions took the time."""
    import cProfile
    import pstats

    with cProfile.Profile() as seen:
        yield
    with file.open("w") as out:
        pstats.Stats(seen, stream=out).sort_stats("cumulative").print_stats(120)


def ask(words: list[str], cache: str, profile: Path | None = None) -> dict[str, Any]:
    """Start a process, and return what it tells in its last line."""
    command = [sys.executable, __file__, *words, "--one"] + ([] if profile is None else ["--profile", str(profile)])
    kept = {"HEDDLE_CACHE": cache, BEGAN: repr(time.time()), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=os.environ | kept, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"a start ended with {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def main() -> None:
    """Start some times; fail when a later start is too slow."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="RECIPE KEY=VALUE", help=f"if none: {' '.join(GPT2)}")
    parser.add_argument("--starts", type=int, default=3, help="2 or more, for a verdict")
    parser.add_argument("--profile", type=Path, help="a file for one more start, under a profiler")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    words = given.words or GPT2
    if given.one:
        print(json.dumps(start(words, given.profile)))
        return
    with tempfile.TemporaryDirectory() as cache:
        found = []
        for number in range(given.starts):
            found.append(ask(words, cache))
            print(f"start {number + 1}: {found[-1]}", flush=True)
        if given.profile is not None:
            ask(words, cache, given.profile)
    from results import record

    if found and not found[-1]["compiled"]:
        print("nothing was compiled: hardware.compile=on compiles on a CPU too")
    if len(found) < 2 or found[0]["device"] != "cuda":
        return
    record("second start", words=words, starts=found, bar=BAR)
    slowest = max(one["stepped"] for one in found[1:])
    print(f"later starts: {slowest} s at most (bar {BAR}: {'pass' if slowest <= BAR else 'MISSED'})")


if __name__ == "__main__":
    from entry_point import run_main  # here, so that what it imports is timed too

    run_main(main)
