"""Speculative decoding beside plain generation, in turns, on passages of a text: tokens/s, and how many are right.

    python benchmarks/speculative.py MODEL --text FILE [--drafts lookup RUN ...] [--compile on]

MODEL and RUN are anything that `heddle generate` takes. Greedy, so that what is written is the same; where numbers are
rounded in another order it may come to differ, and the share of passages that are equal is reported.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from entry_point import positive, run_main
from results import record

import heddle
from heddle.core.system import choose_hardware
from heddle.decoding.generation import GenerationConfig, generate
from heddle.decoding.runtime import make_requests
from heddle.decoding.speculative import Draft, LookupDraft, ModelDraft, speculate
from heddle.lm import LM
from heddle.models.networks import AutoregressiveModel

Write = Callable[[list[int]], list[int]]


def passages(lm: LM, text: str, count: int, length: int) -> list[list[int]]:
    """Cut beginnings of some length out of a text, spread over all of it."""
    ids = lm.tokenizer.encode(text)
    last = len(ids) - length
    if last < count:
        raise SystemExit(f"--text: want at least {count + length} tokens, got {len(ids)}")
    return [ids[at : at + length] for at in range(0, last, max(1, last // count))][:count]


def draft_of(word: str, device: str, ahead: int) -> Draft:
    """Return what a word on the command line stands for."""
    if word == "lookup":
        return LookupDraft(ahead=ahead)
    found = heddle.load(word, device=device).model
    assert isinstance(found, AutoregressiveModel)
    return ModelDraft(model=found, ahead=ahead)


def plainly(model: AutoregressiveModel, how: GenerationConfig) -> Write:
    """Return what writes without a draft."""
    return lambda prompt: generate(model, [prompt], how)[0]


def guessing(model: AutoregressiveModel, how: GenerationConfig, draft: Draft) -> Write:
    """Return what writes with them."""

    def write(prompt: list[int]) -> list[int]:
        steps = speculate(model, make_requests([prompt]), how, draft)
        return [step.id for step in steps if step.id is not None]

    return write


def measured(ways: dict[str, Write], prompts: list[list[int]]) -> dict[str, dict[str, Any]]:
    """Let all ways write after each prompt in turns, once to warm up."""
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    texts: dict[str, list[list[int]]] = {name: [] for name in ways}
    for number, prompt in enumerate([prompts[0], *prompts]):
        for name, write in ways.items():
            start = time.perf_counter()
            ids = write(prompt)
            if number:
                speeds[name].append(len(ids) / (time.perf_counter() - start))
                texts[name].append(ids)
    plain = next(iter(ways))
    ratios = {name: [a / b for a, b in zip(speeds[name], speeds[plain], strict=True)] for name in ways}
    return {
        name: {
            "tokens_per_second": round(statistics.median(speeds[name]), 1),
            "ratio": round(statistics.median(ratios[name]), 3),
            "ratios": [round(min(ratios[name]), 3), round(max(ratios[name]), 3)],
            "equal": sum(a == b for a, b in zip(texts[name], texts[plain], strict=True)) / len(prompts),
        }
        for name in ways
    }


def main() -> None:
    """Measure every draft."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--drafts", nargs="+", default=["lookup"])
    parser.add_argument("--ahead", type=positive, default=4, help="draft tokens at once")
    parser.add_argument("--passages", type=positive, default=8)
    parser.add_argument("--prompt", type=positive, default=256, help="tokens of a beginning")
    parser.add_argument("--new", type=positive, default=256, help="tokens to write")
    parser.add_argument("--compile", choices=["auto", "on", "off"], default="auto")
    parser.add_argument("--weights")
    words = parser.parse_args()
    device = choose_hardware().device.type
    lm = heddle.load(words.model, device=device, **({"weights": words.weights} if words.weights else {}))
    assert isinstance(lm.model, AutoregressiveModel)
    prompts = passages(lm, words.text.read_text(encoding="utf-8"), words.passages, words.prompt)
    how = GenerationConfig(max_tokens=words.new, compile=words.compile)
    drafts = {word: draft_of(word, device, words.ahead) for word in words.drafts}
    ways = {"plain": plainly(lm.model, how)}
    ways |= {f"draft {Path(word).name}": guessing(lm.model, how, draft) for word, draft in drafts.items()}
    with torch.inference_mode():
        found = measured(ways, prompts)
    for word, draft in drafts.items():
        found[f"draft {Path(word).name}"]["right"] = round(draft.tally.rate, 3)
    for name, numbers in found.items():
        print(f"{name}: {numbers}", flush=True)
    given = {name: getattr(words, name) for name in ("ahead", "compile", "weights", "passages", "prompt", "new")}
    record("guessing", model=Path(words.model).name, **given, found=found)


if __name__ == "__main__":
    run_main(main)
