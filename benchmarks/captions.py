"""Captions: pictures, video, and speech in video to text, each model against one that lacks something.

    python benchmarks/caption_data.py DATA OUT                                   makes the manifests
    python benchmarks/captions.py train OUT [KEY=VALUE...] [--minutes M] [--processes N] [--arms ...] [--seeds ...]
    python benchmarks/captions.py report OUT                                     tables, with bootstrap intervals

Arms, by set: flickr: a Transformer and an LSTM with attention (show, attend and tell), each also blind, with one grey
picture in place of all. emoji: a Transformer. video: a Transformer over moving shapes. grid: the sound alone, the mouth
alone, both; and sound and both with noise at 0 dB. All arms of a set have one budget, and the checkpoint of the lowest
loss on the tuning part is measured. `train` goes on where it stopped, within --minutes, several arms beside each other
with --processes; each finished run is a line of OUT/captions.jsonl, what it wrote is in OUT/captions.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from entry_point import positive, run_main
from numpy.typing import NDArray
from results import commit, device, read_lines

import heddle
from heddle.core.system import parse_overrides
from heddle.tasks.generation import Captioner, exact_matches
from heddle.tasks.inputs import MediaInputs
from heddle.tasks.metrics import consensus_scores, edit_distance, sacrebleu_for
from heddle.tasks.recognition import transcriber

RESAMPLES, LEVEL, ORDERS = 1000, 0.95, 4
Row = dict[str, Any]
Settings = dict[str, Any]

PICTURES: Settings = {"training.steps": 6000, "training.batch": 128, "rows.batch": 128, "training.schedule.warmup": 600}
SETS: dict[str, Settings] = {
    "flickr": PICTURES | {"rows.length": 40, "tokenizer.vocab": 4000},
    "emoji": PICTURES | {"rows.features.size": [48, 48], "tokenizer.vocab": 2000, "training.steps": 4000},
    "video": PICTURES
    | {"rows.features.size": [32, 32], "rows.source_length": 16, "rows.length": 64, "tokenizer.vocab": 370},
    "grid": {"training.steps": 5000, "training.batch": 32, "rows.batch": 32, "training.schedule.warmup": 500},
}
COMMON: Settings = {
    "training.average_last": 0,
    "every.validate": 200,
    "every.save": 200,
    "every.sample": 10**9,
    "keep.last": 1,
    "keep.best": 1,
    "data.unique": False,
    "hardware.workers": 4,
    "hardware.compile": "off",
}
LIPS: Settings = {
    "tokenizer": {"kind": "character"},
    "model": {"name": "video_captioner", "layers": 4, "width": 192, "heads": 4, "dropout": 0.1, "dials": {"patch": 4}},
    "objective": {"kind": "ctc_attention", "attention": {"kind": "sequence", "smoothing": 0.1}},
    "rows.features": {"kind": "clip", "size": [32, 64], "channels": 1},
    "rows.augment": [{"kind": "crop", "least": 0.9}],
    "rows.length": 128,
}
SOUND: Settings = {"model.width": 192, "model.layers": 4, "rows.length": 128}
CLIP: Row = {"kind": "video", "size": [32, 64], "channels": 1}
BOTH: Row = {"kind": "audio_visual", "size": [32, 64], "channels": 1}
IMAGE: Row = {"kind": "image"}
# Of each arm: the set, the recipe, its settings, its source, and which manifests it reads.
ARMS: dict[str, tuple[str, str, Settings, Row, str]] = {
    "flickr-transformer": ("flickr", "caption", {}, IMAGE, "{part}.jsonl"),
    "flickr-lstm": ("flickr", "caption_lstm", {}, IMAGE, "{part}.jsonl"),
    "flickr-transformer-blind": ("flickr", "caption", {}, IMAGE, "{part}.blind.jsonl"),
    "flickr-lstm-blind": ("flickr", "caption_lstm", {}, IMAGE, "{part}.blind.jsonl"),
    "emoji-transformer": ("emoji", "caption", {}, IMAGE | {"size": [48, 48]}, "{part}.jsonl"),
    "video-transformer": ("video", "caption_video", {}, {"kind": "video"}, "{part}.jsonl"),
    "grid-sound": ("grid", "transcribe", SOUND, {"kind": "sound"}, "clean/{part}.wav.jsonl"),
    "grid-mouth": ("grid", "caption_video", LIPS, CLIP, "clean/{part}.npy.jsonl"),
    "grid-both": ("grid", "transcribe_audio_visual", {}, BOTH, "clean/{part}.npy.jsonl"),
    "grid-sound-noisy": ("grid", "transcribe", SOUND, {"kind": "sound"}, "noisy/{part}.wav.jsonl"),
    "grid-both-noisy": ("grid", "transcribe_audio_visual", {}, BOTH, "noisy/{part}.npy.jsonl"),
}
MEASURED = {"flickr": ("dev",), "emoji": ("dev", "style"), "video": ("dev", "unseen", "shuffled"), "grid": ("dev",)}
# Each pair: the first must be better than the second.
PAIRS = (
    ("flickr-transformer", "flickr-transformer-blind"),
    ("flickr-lstm", "flickr-lstm-blind"),
    ("flickr-transformer", "flickr-lstm"),
    ("grid-both-noisy", "grid-sound-noisy"),
    ("grid-both-noisy", "grid-mouth"),
    ("grid-both", "grid-sound"),
)


# --- training and writing ---------------------------------------------------------------------------------------------


def train(out: Path, arm: str, seed: int, minutes: float, overrides: Settings) -> heddle.Run:
    """Train an arm, or go on with it, for at most so long."""
    family, recipe, own, source, manifest = ARMS[arm]
    name, limit = f"{arm}-{seed}", {"stop.minutes": minutes}
    if (out / "runs" / name / "checkpoints").exists():
        return heddle.train(out / "runs" / name, overrides=limit, runs=out / "runs", progress=False)
    parts = {part: source | {"path": str(out / family / manifest.format(part=part))} for part in ("train", "tune")}
    data = {"data.sources": [parts["train"]], "data.split": {"kind": "file", "source": parts["tune"]}}
    whole = COMMON | SETS[family] | own | data | {"name": name, "seed": seed} | overrides | limit
    return heddle.train(recipe, overrides=whole, runs=out / "runs", progress=False)


def rows_of(out: Path, arm: str, part: str) -> list[Row]:
    """Return what is measured of a part: each picture or clip once, with all of its texts."""
    family, _, _, _, manifest = ARMS[arm]
    path = out / family / manifest.format(part=part)
    found: dict[tuple[str, float], Row] = {}
    for line in read_lines(path):
        key = str(line.get("speaker", line["path"])) if family == "flickr" else line["path"], line.get("start", 0)
        own = found.setdefault(key, line | {"file": str(path.parent / line["path"]), "texts": []})
        own["texts"].append(line["text"])
    return list(found.values())


def written(out: Path, arm: str, seed: int, part: str) -> list[str]:
    """Return what the best checkpoint of a run writes to a part, by beam search; to equal pictures once."""
    lm = heddle.load(out / "runs" / f"{arm}-{seed}", best=True)
    if ARMS[arm][0] == "grid":  # CTC and attention search together
        recognizer = transcriber(lm.model, lm.tokenizer, lm.origin.settings, {}, batch=32)
        clips = recognizer.utterances([out / "grid" / ARMS[arm][4].format(part=part)])
        return [found.text for _, found in recognizer.run(clips)]
    inputs = MediaInputs.of(lm.origin.settings, lm.model.reads)
    task = Captioner.of(lm.model, lm.tokenizer, inputs, {"beams": 4, "max_tokens": 128}, batch=64)
    family, manifest = ARMS[arm][0], ARMS[arm][4]
    found = {one.input.key: one.text for one in task.run(inputs.find([out / family / manifest.format(part=part)]))}
    by_place = {(key[0], key[1]): text for key, text in found.items()}
    rows = rows_of(out, arm, part)
    return [by_place[str(Path(row["file"]).absolute()), float(row.get("start", 0))] for row in rows]


def train_all(out: Path, given: argparse.Namespace) -> None:
    """Train the arms in turn within the time, so that the seeds of all advance together; measure what is finished."""
    end, path = time.monotonic() + 60 * given.minutes, out / "captions.jsonl"
    done = {(line["arm"], line["seed"]) for line in read_lines(path)}
    jobs = [(arm, seed) for seed in given.seeds for arm in given.arms if (arm, seed) not in done]
    if given.processes > 1:
        _side_by_side(out, jobs, given, end)
        return
    for arm, seed in jobs:
        left = (end - time.monotonic()) / 60
        if left <= 0:
            return
        run = train(out, arm, seed, left, given.overrides)
        if run.step < run.config.training.steps:
            print(f"{arm} {seed}: {run.step} of {run.config.training.steps} steps; call again", flush=True)
            continue
        record = {"arm": arm, "seed": seed, "steps": run.step, "commit": commit(), "device": device()}
        (out / "captions").mkdir(exist_ok=True)
        for part in MEASURED[ARMS[arm][0]]:
            texts = written(out, arm, seed, part)
            (out / "captions" / f"{arm}-{seed}.{part}.json").write_text(json.dumps(texts, ensure_ascii=False, indent=0))
            record[part] = {name: round(value, 4) for name, value in measures(rows_of(out, arm, part), texts).items()}
        with path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        print(json.dumps(record), flush=True)


def _side_by_side(out: Path, jobs: Sequence[tuple[str, int]], given: argparse.Namespace, end: float) -> None:
    """Train several arms at once, each in a process of its own that appends its own line."""
    words = [word for word in given.words if "=" in word]
    waiting, running = list(jobs), list[subprocess.Popen[bytes]]()
    while waiting or running:
        running = [one for one in running if one.poll() is None]
        left = (end - time.monotonic()) / 60
        while waiting and len(running) < given.processes and left > 0:
            arm, seed = waiting.pop(0)
            command = [sys.executable, __file__, "train", str(out), *words, "--minutes", f"{left:.3f}"]
            running.append(subprocess.Popen([*command, "--arms", arm, "--seeds", str(seed)]))
        if left <= 0:
            waiting.clear()
        time.sleep(0.2)


# --- measuring --------------------------------------------------------------------------------------------------------


def measures(rows: Sequence[Row], texts: Sequence[str]) -> dict[str, float]:
    """Return what is reported of some captions: of clips of shapes also each fact, of speech the word error rate."""
    references = [row["texts"] for row in rows]
    found = {"exact": 100 * statistics.mean(exact_row(row, text) for row, text in zip(rows, texts, strict=True))}
    if len(rows) > 1:
        found |= {"bleu": bleu(texts, references), "cider": statistics.mean(consensus_scores(texts, references))}
    found["wer"] = 100 * float(np.divide(*errors(rows, texts).sum(0)))
    if "facts" in rows[0]:
        hits = [fact_hits(row, text) for row, text in zip(rows, texts, strict=True)]
        for name in ("colour", "shape", "action", "size", "order"):
            own = [hit[name] for hit in hits if name in hit]
            found[name] = 100 * statistics.mean(own) if own else 0.0
    return found


def bleu(texts: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Return corpus BLEU-4 in small letters, against all references of each."""
    most = max(map(len, references))
    streams = [[several[n] if n < len(several) else None for several in references] for n in range(most)]
    return float(sacrebleu_for("grading")(lowercase=True).corpus_score(list(texts), streams).score)


def errors(rows: Sequence[Row], texts: Sequence[str]) -> NDArray[np.float64]:
    """Return the word errors of each text and the words of its first reference."""
    pairs = [(row["texts"][0].lower().split(), text.split()) for row, text in zip(rows, texts, strict=True)]
    return np.array([[edit_distance(right, mine), len(right)] for right, mine in pairs], np.float64)


def exact_row(row: Row, text: str) -> bool:
    """Tell whether a caption is right; two things at the same time may be told in either order."""
    if "facts" not in row or row["facts"]["order"] != "while":
        return exact_matches([text], [row["texts"]])[0]
    told = row["texts"][0]
    for word in (" while ", " and at the same time "):
        if word in told:
            first, second = told.split(word)
            others = (" while ", " and at the same time ")
            return text in {x.join(pair) for x in others for pair in ((first, second), (second, first))}
    return exact_matches([text], [row["texts"]])[0]


def fact_hits(row: Row, text: str) -> dict[str, bool]:
    """Tell which facts of a clip a caption has right: of its first object, and the order of two."""
    actions = {
        "left": "moves left", "right": "moves right", "up": "moves up", "down": "moves down", "still": "stays still",
        "grow": "grows", "shrink": "shrinks", "blink": "blinks", "orbit": "goes round", "bounce": "bounces",
    }  # fmt: skip
    objects = row["facts"]["objects"]
    colour, shape, action, size = objects[0]
    found = {"colour": colour in text, "shape": shape in text, "action": actions[action] in text, "size": size in text}
    if row["facts"]["order"] == "then":
        first, second = (text.find(f"{one[3]} {one[0]} {one[1]}") for one in objects)
        found["order"] = -1 < first < second
    return found


def per_row(rows: Sequence[Row], texts: Sequence[str], family: str) -> dict[str, NDArray[np.float64]]:
    """Return numbers of each row whose sums or means give the measures, for intervals."""
    if family == "grid":
        return {"wer": errors(rows, texts)}
    return {"cider": np.array(consensus_scores(texts, [row["texts"] for row in rows]))[:, None]}


def interval(sides: tuple[Sequence[Any], Sequence[Any]], rows: int, value: Any) -> tuple[float, float, float]:
    """Return the difference of the means over seeds with its interval, resampling the rows of both sides alike."""
    draw = np.random.default_rng(0)

    def difference(chosen: NDArray[np.int64]) -> float:
        means = [statistics.mean(value(one, chosen) for one in side) for side in sides]
        return float(means[0] - means[1])

    found = [difference(draw.integers(rows, size=rows)) for _ in range(RESAMPLES)]
    low, high = np.quantile(found, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return difference(np.arange(rows)), float(low), float(high)


def _chosen_bleu(rows: Sequence[Row], texts: Sequence[str], chosen: NDArray[np.int64]) -> float:
    return bleu([texts[i] for i in chosen], [rows[i]["texts"] for i in chosen])


def compared(out: Path, first: str, second: str) -> dict[str, Any]:
    """Return by how much one arm is better than another, with intervals; {}: one of them is not done."""
    family, rows = ARMS[first][0], rows_of(out, first, "dev")
    files = [sorted((out / "captions").glob(f"{arm}-[0-9]*.dev.json")) for arm in (first, second)]
    sides = [[json.loads(file.read_text()) for file in own] for own in files]
    if not all(sides):
        return {}
    numbers = [[per_row(rows, texts, family) for texts in side] for side in sides]
    (name,) = numbers[0][0]

    def mean(one: dict[str, NDArray[np.float64]], chosen: NDArray[np.int64]) -> float:
        total = one[name][chosen].sum(0)
        return 100 * float(total[0] / total[1]) if name == "wer" else float(total[0] / len(chosen))

    found: dict[str, Any] = {name: interval((numbers[0], numbers[1]), len(rows), mean)}
    if family == "flickr":
        found["bleu"] = interval(
            (sides[0], sides[1]), len(rows), lambda texts, chosen: _chosen_bleu(rows, texts, chosen)
        )
    return found


def report(out: Path) -> dict[str, Any]:
    """Print and write the means of each arm with their deviations, and the differences that matter."""
    lines = read_lines(out / "captions.jsonl")
    found: dict[str, Any] = {"arms": {}, "differences": {}}
    for arm in ARMS:
        own = [line for line in lines if line["arm"] == arm]
        for part in MEASURED[ARMS[arm][0]] if own else ():
            for name in own[0][part]:
                values = [line[part][name] for line in own]
                spread = statistics.stdev(values) if len(values) > 1 else None
                cell = {"mean": round(statistics.mean(values), 3), "deviation": spread, "seeds": len(values)}
                found["arms"].setdefault(arm, {}).setdefault(part, {})[name] = cell
    for first, second in PAIRS:
        if difference := compared(out, first, second):
            found["differences"][f"{first} minus {second}"] = difference
    (out / "captions-report.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    return found


def main() -> None:
    """Read the command and do it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "report"))
    parser.add_argument("words", nargs="+", help="OUT; then KEY=VALUE")
    parser.add_argument("--minutes", type=float, default=9.0, help="time limit of this call")
    parser.add_argument("--processes", type=positive, default=1, help="arms that are trained beside each other")
    parser.add_argument("--arms", nargs="+", choices=tuple(ARMS), default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    given = parser.parse_intermixed_args()
    given.overrides = dict(parse_overrides([word for word in given.words if "=" in word], {}))
    folders = [Path(word) for word in given.words if "=" not in word]
    if len(folders) != 1:
        parser.error("want one folder OUT")
    if given.what == "train":
        train_all(folders[0], given)
    else:
        report(folders[0])


if __name__ == "__main__":
    run_main(main)
