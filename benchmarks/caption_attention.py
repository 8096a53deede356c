"""Where a video captioner looks: do the frames that it attends to follow the order of the actions that it tells?

    python benchmarks/caption_attention.py OUT [--seeds ...] [--most N]

For each clip of the part dev whose caption tells one action after another ("... and then ..."), the caption is written
by teacher forcing, and the weights of cross-attention are averaged over layers and heads. What is reported is the share
of clips in which the words of the first action look at earlier frames, on average, than those of the second, with a
bootstrap interval over clips; chance is one half. Needs what benchmarks/captions.py has trained.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from captions import LEVEL, RESAMPLES, Row, rows_of
from entry_point import run_main
from results import commit, device

import heddle
from heddle.explain import ExplainOptions, explain
from heddle.tasks.inputs import MediaInputs

ARM = "video-transformer"


def clauses(caption: str) -> tuple[str, str] | None:
    """Return what a caption says first and what then; None: it does not tell one thing after another."""
    if " and then " in caption:
        first, second = caption.split(" and then ")
        return first, f" and then {second}"
    if caption.startswith("first ") and " , then " in caption:
        first, second = caption.split(" , then ")
        return first, f" , then {second}"
    return None


def mean_frames(lm: heddle.LM, features: torch.Tensor, parts: tuple[str, str]) -> tuple[float, float]:
    """Return the frame that the words of each part look at, on average."""
    options = ExplainOptions(what=("attention",), output="".join(parts))
    found = explain(lm.model, lm.tokenizer, features, options)
    source = next(one for one in found.sequences if one.name == "source")
    assert source.picture is not None
    frames, rows, columns = source.picture.grid
    maps = [one.weights.mean(0) for one in found["attention"].maps if one.kind == "cross"]  # type: ignore[attr-defined]
    seen = torch.stack(maps).mean(0)[:, source.picture.first :]
    seen = seen.reshape(len(seen), frames, rows * columns).sum(2)
    seen = seen / seen.sum(1, keepdim=True)
    centre = seen @ torch.arange(frames, dtype=seen.dtype)  # of each step, which predicts the token after it
    cut = len(lm.tokenizer.for_target.encode(parts[0]))
    return float(centre[:cut].mean()), float(centre[cut:-1].mean())


def measured(out: Path, seed: int, most: int) -> dict[str, Any]:
    """Return how often the order of the frames is that of the words."""
    lm = heddle.load(out / "runs" / f"{ARM}-{seed}", best=True)
    inputs = MediaInputs.of(lm.origin.settings, lm.model.reads)
    known = {(one.key[0], one.key[1]): one for one in inputs.find([out / "video" / "dev.jsonl"])}
    rows: list[tuple[Row, tuple[str, str]]] = []
    for row in rows_of(out, ARM, "dev"):
        parts = clauses(row["texts"][0])
        if parts is not None:
            rows.append((row, parts))
    hits, gaps = [], []
    for row, parts in rows[:most]:
        features = inputs.read(known[str(Path(row["file"]).absolute()), float(row["start"])])
        first, second = mean_frames(lm, features, parts)
        hits.append(float(first < second))
        gaps.append(second - first)
    draw = np.random.default_rng(0)
    drawn = [np.mean(np.array(hits)[draw.integers(len(hits), size=len(hits))]) for _ in range(RESAMPLES)]
    low, high = np.quantile(drawn, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    share = {"share": float(np.mean(hits)), "low": float(low), "high": float(high), "clips": len(hits)}
    return {"arm": ARM, "seed": seed, **share, "frames_later": float(np.mean(gaps))}


def main() -> None:
    """Read the command and do it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--most", type=int, default=400, help="most clips")
    given = parser.parse_args()
    for seed in given.seeds:
        if (given.out / "runs" / f"{ARM}-{seed}").exists():
            line = measured(given.out, seed, given.most) | {"commit": commit(), "device": device()}
            with (given.out / "caption-attention.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    run_main(main)
