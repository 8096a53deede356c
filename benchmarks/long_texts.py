"""Long texts: the loss by position to eight times the trained length, for every kind of position, and passkeys.

    python benchmarks/long_texts.py tables DATA OUT                   Gutenberg's books, and texts with a passkey
    python benchmarks/long_texts.py run OUT [KEY=VALUE...] [--seeds 0 1 2] [--minutes M]
    python benchmarks/long_texts.py stream OUT [--tokens 200000]      read so many tokens with sinks; memory by /proc
    python benchmarks/long_texts.py report OUT

DATA holds the folder lm-gutenberg. Models of one shape are trained at one length (rows.length) on the same books, a
tenth of them texts that say a number and ask for it at their end; they differ in their positions alone: learned,
sinusoidal, rotary, ALiBi, none; an LSTM and a Transformer-XL of about that size stand beside them. Three more rows have
the weights of the rotary model: YaRN for eight times the length, a sliding window with attention sinks, and the window
alone. Each is measured on the validation books in rows of eight times the trained length (learned positions end at that
length, and are measured up to there), and asked for numbers that were said up to that far back. Each has a line in
OUT/long_texts.jsonl; the report draws OUT/long_texts.svg from them. What is done is not done again; what `--minutes` or
a kill cut off goes on with the next call.
"""

import argparse
import json
import lzma
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from entry_point import run_main
from results import commit, device, read_lines

import heddle
from heddle.cli.curves import Curve, to_svg
from heddle.core import UsageError, replace
from heddle.core.system import parse_overrides
from heddle.decoding.runtime import StreamingConfig
from heddle.decoding.scoring import nll_long_texts
from heddle.models.networks import LanguageModel, LanguageModelConfig, require
from heddle.nn.positions import RotaryPositionConfig, YarnScalingConfig
from heddle.tasks.evaluation import answer_passkeys, passkey_examples, passkey_metrics, passkey_text
from heddle.tasks.scoring import PositionConfig, loss_by_position

TIMES = 8  # the trained length
SINKS = 4
SHARE = 0.1  # of the training texts that have a passkey
CHARACTERS = 40_000  # of a piece of a book
MARGIN = 0.3  # minutes before the end in which nothing begins
SETTINGS: dict[str, Any] = {
    "model.layers": 6,
    "model.width": 384,
    "model.heads": 6,
    "tokenizer.vocab": 4096,
    "rows.length": 256,
    "training.batch": 64,
    "training.steps": 3000,
    "every.validate": 1000,
    "every.save": 500,
    "every.sample": 10_000_000,
}
TRAINED: dict[str, dict[str, Any]] = {
    "learned": {"model.position": {"kind": "learned"}},
    "sinusoidal": {"model.position": {"kind": "sinusoidal"}},
    "rotary": {"model.position": {"kind": "rotary"}},
    "alibi": {"model.position": {"kind": "alibi"}},
    "none": {"model.position": {"kind": "none"}},
    "lstm": {"model": "lstm_lm", "model.layers": 2},
    "transformer_xl": {"model": "transformer_xl"},
}
DERIVED = ("rotary, YaRN", "rotary, sinks and window", "rotary, window alone")
KINDS = (*TRAINED, *DERIVED)
Line = dict[str, Any]


def books(folder: Path, side: str) -> Iterator[str]:
    """Yield the texts of books, on one line each."""
    for path in sorted(folder.glob(f"{side}*.jsonl.xz")):
        with lzma.open(path, "rt", encoding="utf-8", newline="\n") as file:
            yield from (" ".join(str(json.loads(line)["text"]).split()) for line in file)


def tables(data: Path, out: Path) -> None:
    """Write pieces of books, of which some hide a number, and the validation books."""
    draw, out = random.Random(0), out / "texts"
    out.mkdir(parents=True, exist_ok=True)
    with (out / "train.jsonl").open("w", encoding="utf-8") as file:
        for text in books(data / "lm-gutenberg", "train"):
            for start in range(0, len(text), CHARACTERS):
                piece = text[start : start + CHARACTERS]
                cut = int(len(piece) * (1 - SHARE))
                file.write(json.dumps({"text": piece[:cut]}, ensure_ascii=False) + "\n")
                for hidden in passkeys(piece[cut:], draw):
                    file.write(json.dumps({"text": hidden}, ensure_ascii=False) + "\n")
    with (out / "valid.jsonl").open("w", encoding="utf-8") as file:
        for text in books(data / "lm-gutenberg", "valid"):
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")


def passkeys(text: str, draw: random.Random) -> Iterator[str]:
    """Yield texts that hide a number, of many lengths, made of one text."""
    start = 0
    while start < len(text) - 100:
        length = draw.choice((50, 100, 200, 400, 700))
        place = draw.randint(0, length)
        around = text[start : start + length]
        yield passkey_text(str(draw.randint(10_000, 99_999)), around[:place], around[place:])
        start += length


def settings_of(kind: str, seed: int, given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a training run."""
    own = SETTINGS | given
    if kind in ("lstm", "transformer_xl"):
        own = {key: value for key, value in own.items() if kind != "lstm" or key not in ("model.heads", "model.layers")}
    if kind == "transformer_xl":  # as many positions before each as the others have, carried from row to row
        length, lanes = int(own.pop("rows.length")), int(own["training.batch"])
        own |= {"rows": {"kind": "streams", "length": length // 2, "lanes": lanes}, "model.memory": length // 2}
        own["training.batch"] = lanes
    return TRAINED[kind] | own | {"name": f"{kind}-{seed}", "seed": seed}


def train(out: Path, kind: str, seed: int, given: dict[str, Any], minutes: float) -> bool:
    """Train a model, or go on with it; tell whether it came to its end."""
    folder, limit = out / "runs" / f"{kind}-{seed}", {"stop.minutes": min(minutes, 1e6)}
    if folder.exists():
        return heddle.train(folder, overrides=limit).stopped is None
    own = settings_of(kind, seed, given) | limit
    data = out / "texts" / "train.jsonl"
    return heddle.train("first", data=data, overrides=own, runs=out / "runs").stopped is None


def opened(out: Path, kind: str, seed: int) -> tuple[heddle.LM, StreamingConfig | None]:
    """Return the model of a row, and how it reads."""
    if kind in TRAINED:
        return heddle.load(out / "runs" / f"{kind}-{seed}"), None
    lm = heddle.load(out / "runs" / f"rotary-{seed}")
    model = require(lm.model, LanguageModel, ValueError("want a language model"))
    if kind == "rotary, YaRN":
        config = require_config(model)
        scaling = YarnScalingConfig(factor=float(TIMES), original=model.context)
        wide = replace(config, position=RotaryPositionConfig(scaling=scaling)).build()
        wide.load_weights(model.weights())
        return heddle.LM(wide.to(next(model.parameters()).device), lm.tokenizer, lm.origin), None
    sinks = SINKS if kind == "rotary, sinks and window" else 0
    return lm, StreamingConfig(window=model.context - sinks, sinks=sinks)


def require_config(model: LanguageModel) -> LanguageModelConfig:
    """Return the config of a language model."""
    if not isinstance(model.config, LanguageModelConfig):
        raise TypeError("want the config of a language model")
    return model.config


def measure(out: Path, kind: str, seed: int, given: argparse.Namespace) -> Line:
    """Return the loss by position of a model, and how many passkeys it finds, by length."""
    lm, streaming = opened(out, kind, seed)
    model = require(lm.model, LanguageModel, ValueError("want a language model"))
    texts = [line["text"] for line in read_lines(out / "texts" / "valid.jsonl")]
    trained = int((SETTINGS | given.overrides)["rows.length"])
    wanted = PositionConfig(length=TIMES * trained, bucket=max(1, trained // 8), rows=given.rows, streaming=streaming)
    line: Line = {"kind": kind, "seed": seed, "trained": trained}
    try:
        losses = loss_by_position(model, lm.tokenizer, texts, wanted)
    except UsageError as error:
        line["refused"] = str(error)
        losses = loss_by_position(model, lm.tokenizer, texts, replace(wanted, length=trained))
    line |= losses.plain() | {"within": losses.mean(1, trained), "beyond": losses.mean(trained + 1, TIMES * trained)}
    examples = passkey_examples(texts[0][: 100 * trained], keys=given.keys)
    times = trained / model.context  # a Transformer-XL is built for half of it
    examples = [replace_times(one, times) for one in examples]
    try:
        found = answer_passkeys(model, lm.tokenizer, examples, streaming)
    except UsageError as error:  # no text that asks for a number is so short
        return line | {"passkey": {}, "no_passkey": str(error)}
    return line | {"passkey": passkey_metrics(found, [replace_times(one, 1 / times) for one in examples])}


def replace_times(example: Any, factor: float) -> Any:
    """Return an example whose length is counted in other units."""
    return type(example)(example.key, example.times * factor, example.depth, example.filler)


def run(out: Path, given: argparse.Namespace) -> None:
    """Train and measure everything, as far as the time allows."""
    until = time.time() + 60 * given.minutes
    done = {(line["kind"], line["seed"]) for line in read_lines(out / "long_texts.jsonl")}
    for seed in given.seeds:
        for kind in (kind for kind in KINDS if (kind, seed) not in done):
            left = (until - time.time()) / 60 - MARGIN
            base = kind if kind in TRAINED else "rotary"
            if left < MARGIN or not train(out, base, seed, given.overrides, left) or time.time() > until - 60 * MARGIN:
                print("the time is over; the next call goes on")
                return
            line = measure(out, kind, seed, given) | {"commit": commit(), "device": device()}
            with (out / "long_texts.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(kind, seed, f"{line['within']:.4f} {line['beyond']:.4f}", line["passkey"], flush=True)
    report(out)


def resident() -> int:
    """Return the bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def stream(out: Path, given: argparse.Namespace) -> None:
    """Read a long text with sinks; write down memory, loss and speed along the way."""
    lm, _ = opened(out, "rotary", given.seeds[0])
    model = require(lm.model, LanguageModel, ValueError("want a language model"))
    texts = [line["text"] for line in read_lines(out / "texts" / "valid.jsonl")]
    ids = np.concatenate([lm.tokenizer.encode(text) for text in texts])[: given.tokens]
    seen: list[tuple[int, float, int]] = []
    read, began = 0, time.time()

    def watched(vectors: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        nonlocal read
        losses = model.head.nll(vectors, targets)
        read += len(targets)
        if not seen or read - seen[-1][0] >= max(1, given.tokens // 20) or read == len(ids):
            gpu = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
            seen.append((read, float(losses.mean()), resident() + gpu))
        return losses

    streaming = StreamingConfig(window=model.context - SINKS, sinks=SINKS)
    (losses,) = nll_long_texts(model, [ids], lm.tokenizer.special_tokens.begin, streaming, watched)
    seconds = time.time() - began
    parts = [float(part.mean()) for part in losses.split(max(1, len(losses) // 10))]
    line: Line = {"tokens": len(ids), "window": streaming.window, "sinks": SINKS, "seconds": round(seconds, 1)}
    line |= {"loss_by_tenth": parts, "bytes": [[at, size] for at, _, size in seen]}
    line |= {"grown": seen[-1][2] - seen[len(seen) // 10][2], "commit": commit(), "device": device()}
    with (out / "stream.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(json.dumps(line))


def report(out: Path) -> None:
    """Draw the figure; write and print the table: means over seeds."""
    lines = read_lines(out / "long_texts.jsonl")
    rows = ["| positions | seeds | within the trained length | beyond, to 8 times | passkeys at 1x | 2x | 4x | 8x |"]
    rows, curves, trained = [*rows, "|---|" + "--:|" * 7], [], 0
    for kind in KINDS:
        some = [line for line in lines if line["kind"] == kind]
        if not some:
            continue
        trained = some[0]["trained"]
        curve = [statistics.mean(values) for values in zip(*(line["loss"] for line in some), strict=True)]
        curves.append(Curve(kind, list(zip(some[0]["position"], curve, strict=True))))
        beyond = "refused" if "refused" in some[0] else mean([line["beyond"] for line in some])
        names = [f"accuracy_at_{times}x" for times in (1, 2, 4, 8)]
        keys = [mean([line["passkey"][name] for line in some if name in line["passkey"]]) for name in names]
        rows.append(f"| {' | '.join([kind, str(len(some)), mean([x['within'] for x in some]), beyond, *keys])} |")
    if curves:
        (out / "long_texts.svg").write_text(to_svg(curves, marks=(trained,)), encoding="utf-8")
    (out / "long_texts.md").write_text("\n".join(rows) + "\n")
    print("\n".join(rows))


def mean(values: list[float]) -> str:
    """Show a mean with its deviation, if there are several."""
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{spread}"


def main() -> None:
    """Read the command and do it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("tables", "run", "stream", "report"))
    parser.add_argument("words", nargs="+", metavar="FOLDER", help="DATA OUT, or OUT; then KEY=VALUE")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rows", type=int, default=256, help="rows of validation text, at most")
    parser.add_argument("--keys", type=int, default=20, help="numbers for each length and depth")
    parser.add_argument("--tokens", type=int, default=200_000, help="of a text that is streamed")
    parser.add_argument("--minutes", type=float, default=1e9, help="after which all stops, to be resumed")
    given = parser.parse_intermixed_args()
    given.overrides = dict(parse_overrides([word for word in given.words if "=" in word], {}))
    folders = [Path(word).absolute() for word in given.words if "=" not in word]
    if len(folders) != (2 if given.verb == "tables" else 1):
        parser.error("tables takes DATA and OUT, the others OUT")
    if given.verb == "tables":
        tables(*folders)
    elif given.verb == "report":
        report(folders[0])
    else:
        (run if given.verb == "run" else stream)(folders[0], given)


if __name__ == "__main__":
    run_main(main)
