"""The demo: train the first model on Python's own library, and hold it against gzip and xz on text it has not seen."""

import argparse
import gzip
import lzma
import sys
import time
from pathlib import Path

from entry_point import run_main
from results import record

import heddle
from heddle.checkpoints.store import find_run, newest_config
from heddle.cli.main import main as run_heddle
from heddle.core import decode
from heddle.tasks.scoring import evaluate
from heddle.training import RunConfig

PROMPT = "def read_"


def say(*words: str) -> None:
    """Show a command as a user would type it."""
    print(f"\n$ heddle {' '.join(w if ' ' not in w else repr(w) for w in words)}", flush=True)


def command(*words: str) -> None:
    """Show a command, run it, and stop the demo when it fails."""
    say(*words)
    code = run_heddle(list(words))
    if code:
        sys.exit(code)


def compare(run: Path) -> dict[str, float]:
    """Print and return bits per byte of the model, of gzip -9 and of xz -9 on the very same text."""
    saved = newest_config(run)
    assert saved is not None, f"{run}: no checkpoint"
    texts = [document.text for document in decode(RunConfig, saved[0]).data.held_out()]
    whole = "".join(texts).encode()
    packed = {
        "gzip -9": 8 * len(gzip.compress(whole, 9)) / len(whole),
        "xz -9": 8 * len(lzma.compress(whole, preset=9)) / len(whole),
    }
    lm = heddle.load(run, dtype="auto")
    found = evaluate(lm.model, lm.tokenizer, texts)
    print(
        f"\nheld out: {len(texts)} whole modules, {len(whole):,} bytes; "
        f"windows of {found.window} tokens, stride {found.stride}"
    )
    print(f"  {'heddle':8} {found.bits_per_byte:.3f} bits per byte")
    for name, bits in packed.items():
        print(f"  {name:8} {bits:.3f} bits per byte")
    return {"heddle": found.bits_per_byte, **packed}


def main() -> None:
    """Train, write, compare, and say what to type next; fail where the model does not beat both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="add the figures to benchmarks/results.jsonl")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="changes of the recipe")
    args = parser.parse_args()
    start = time.perf_counter()
    command("train", "first", *args.overrides)
    trained = time.perf_counter() - start
    run = find_run()
    command("generate", PROMPT, "-m", str(run), "--max-tokens", "80", "--temperature", "0.7", "--seed", "1")
    bits = compare(run)
    won = bits["heddle"] == min(bits.values())
    if args.record:
        seconds = {"train": round(trained, 1), "whole": round(time.perf_counter() - start, 1)}
        record("demo", bits_per_byte={name: round(value, 4) for name, value in bits.items()}, seconds=seconds)
    print(
        f"\ntrained in {trained:.0f} s, tokenizer and data included. "
        f"{'It beats both.' if won else 'It does not beat both.'}"
    )
    print(
        f"""
Next:
  .venv/bin/heddle train data=YOUR_TEXT.txt             your own text: a file, a folder, *.jsonl.gz
  .venv/bin/heddle train {run} training.steps=2000      go on with this run
  .venv/bin/heddle generate "class " -m {run}           let it write
  .venv/bin/heddle serve -m {run}                       serve it by OpenAI's protocol: docs/serving.md
  .venv/bin/heddle show gpt2                            what a model is made of, and what it costs
  .venv/bin/heddle train first --print > my.yaml        a config to edit, then: heddle train my.yaml"""
    )
    sys.exit(0 if won else 1)


if __name__ == "__main__":
    run_main(main)
