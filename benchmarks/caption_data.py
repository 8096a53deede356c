"""Data for benchmarks/captions.py: photographs, emoji, moving shapes and speech in video, as manifests and files.

    python benchmarks/caption_data.py DATA OUT [--sets flickr emoji video grid] [--few N]

DATA has caption-flickr8k, caption-emoji, video-shapes and av-grid-s1. Each set becomes a folder of OUT with manifests
of JSON lines (path, text, and start and length in frames): train; tune, by which a checkpoint is chosen; and what is
measured: dev of Flickr8k, of emoji and of GRID as they are published; known emoji in a style that was not trained on
(style); dev and unseen of the moving shapes, and dev with its frames shuffled. A blind twin of Flickr8k has one grey
picture in place of all. GRID's mouths become arrays of grey frames, and its sounds plain WAV, once as they are (clean)
and once with white noise as loud as the speech (noisy, 0 dB); its sounds are Opus, which needs soundfile.
"""

import argparse
import hashlib
import json
import lzma
import os
import subprocess
import sys
import tarfile
import wave
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from entry_point import run_main
from numpy.typing import NDArray
from PIL import Image

from heddle.core import DataError
from heddle.data.media import read_sound, resample

FRAMES, RATE, SHEET = 16, 16_000, (32, 64, 15)  # of a clip of shapes; samples a second; a mouth, and how many in a row
TUNE = {"flickr": 500, "emoji": 150, "grid": 60}  # pictures or clips of the training part
CLIPS = {"train": (20_000, 1), "tune": (500, 4), "dev": (1_000, 2), "unseen": (1_000, 3)}  # how many, and the seed
Row = dict[str, Any]


def rank(name: str) -> int:
    """Return a number by which names are put into a fixed order that means nothing."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write a manifest."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def unpacked(archive: Path, folder: Path) -> None:
    """Unpack the plain files of an archive."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")


def flickr(data: Path, out: Path, few: int | None) -> None:
    """Photographs with five captions each; 500 of the training part choose a checkpoint."""
    for part in ("train", "dev"):
        unpacked(data / f"caption-flickr8k/{part}.tar.xz", out / "images")
    with lzma.open(data / "caption-flickr8k/captions.tsv.xz", "rt", encoding="utf-8") as file:
        lines = [line.rstrip("\n").split("\t") for line in file][1:]
    pictures = {part: sorted({one[0] for one in lines if one[1] == part}, key=rank)[:few] for part in ("train", "dev")}
    if few is None and (len(pictures["train"]), len(pictures["dev"])) != (6000, 1000):
        raise DataError(f"{data}: want 6,000 and 1,000 photographs, found {[len(one) for one in pictures.values()]}")
    held = max(1, min(TUNE["flickr"], len(pictures["train"]) // 5))
    parts = {"train": set(pictures["train"][held:]), "tune": set(pictures["train"][:held]), "dev": set(pictures["dev"])}
    Image.new("RGB", (112, 112), (128, 128, 128)).save(out / "grey.png")
    for part, own in parts.items():
        rows = [{"path": f"images/{one[0]}", "text": one[3], "speaker": one[0]} for one in lines if one[0] in own]
        write_rows(out / f"{part}.jsonl", rows)
        write_rows(out / f"{part}.blind.jsonl", [row | {"path": "grey.png"} for row in rows])


def emoji(data: Path, out: Path, few: int | None) -> None:
    """Emoji with their names: a fifth of the names is trained on in one of two styles only."""
    unpacked(data / "caption-emoji/images.tar.xz", out / "images")
    lines = (data / "caption-emoji/names.tsv").read_text(encoding="utf-8").split("\n")[1:]
    cells = [line.split("\t") for line in lines if line]
    rows = [
        {"path": f"images/{c[1]}/{c[0]}.png", "text": c[4], "style": c[1], "part": c[2], "speaker": c[4]} for c in cells
    ]
    rows = [row for row in rows if (out / row["path"]).exists()]
    rows = rows if few is None else rows[:: max(1, len(rows) // (4 * few))]
    both = {r["text"] for r in rows if r["style"] == "openmoji"} & {r["text"] for r in rows if r["style"] == "twemoji"}
    hidden = {name for name in both if rank(name) % 5 == 0}
    style = [r for r in rows if r["part"] == "train" and r["style"] == "twemoji" and r["text"] in hidden]
    left = sorted((r for r in rows if r["part"] == "train" and r not in style), key=lambda r: rank(r["path"]))
    held = max(1, min(TUNE["emoji"], len(left) // 10))
    parts = {"train": left[held:], "tune": left[:held], "style": style, "dev": [r for r in rows if r["part"] == "dev"]}
    for part, own in parts.items():
        write_rows(out / f"{part}.jsonl", own)


def video(data: Path, out: Path, few: int | None) -> None:
    """Moving shapes: clips of 16 frames, generated; `shuffled` has the frames of dev in another order."""
    for part, (count, seed) in CLIPS.items():
        made, kind = out / f"{part}.npz", "unseen" if part == "unseen" else "train"
        size = count if few is None else max(4, min(few, count))
        script = str(data / "video-shapes/generate.py")
        subprocess.run([sys.executable, script, str(made), str(size), str(seed), kind], check=True)
        with np.load(made) as found:
            clips, captions, facts = found["video"], found["caption"].tolist(), found["facts"].tolist()
        made.unlink()
        _save_clips(out, part, clips, (captions, facts))
        if part == "dev":
            draw = np.random.default_rng(seed)
            shuffled = np.stack([clip[draw.permutation(FRAMES)] for clip in clips])
            _save_clips(out, "shuffled", shuffled, (captions, facts))


def _save_clips(out: Path, part: str, clips: NDArray[np.uint8], told: tuple[Sequence[str], Sequence[str]]) -> None:
    np.save(out / f"{part}.npy", clips.reshape(-1, *clips.shape[2:]))
    rows = [
        {"path": f"{part}.npy", "start": FRAMES * number, "length": FRAMES, "text": caption, "facts": json.loads(facts)}
        for number, (caption, facts) in enumerate(zip(*told, strict=True))
    ]
    write_rows(out / f"{part}.jsonl", rows)


def grid(data: Path, out: Path, few: int | None) -> None:
    """One speaker's commands, as sound and as frames of the mouth; with and without noise."""
    for name in ("mouth", "audio"):
        unpacked(data / f"av-grid-s1/{name}.tar.xz", out / name)
    lines = (data / "av-grid-s1/clips.tsv").read_text().split("\n")[1:]
    clips = [(c[0], c[1], c[2]) for c in (line.split("\t") for line in lines if line)]
    ids = {part: sorted((c[0] for c in clips if c[1] == part), key=rank)[:few] for part in ("train", "dev")}
    held = max(1, min(TUNE["grid"], len(ids["train"]) // 5))
    parts = {"train": ids["train"][held:], "tune": ids["train"][:held], "dev": ids["dev"]}
    texts = {c[0]: c[2] for c in clips}
    for kind in ("clean", "noisy"):
        (out / kind).mkdir(exist_ok=True)
        for own in parts.values():
            for name in own:
                _save_clip(out, kind, name)
        for part, own in parts.items():
            for ending in (".npy", ".wav"):
                rows = [{"path": f"{name}{ending}", "text": texts[name]} for name in own]
                write_rows(out / kind / f"{part}{ending}.jsonl", rows)


def _save_clip(out: Path, kind: str, name: str) -> None:
    """Write the frames of a mouth and the sound of a clip, with noise as loud as the speech or without."""
    rows, columns, across = SHEET
    target = out / kind / f"{name}.npy"
    if kind == "clean":
        sheet = np.asarray(Image.open(out / "mouth" / f"{name}.jpg").convert("L"))
        cut = sheet.reshape(-1, rows, across, columns).transpose(0, 2, 1, 3)
        np.save(target, cut.reshape(-1, rows, columns))
    elif not target.exists():
        os.link(out / "clean" / f"{name}.npy", target)
    found, rate = read_sound(out / "audio" / f"{name}.opus")
    samples = resample(found, rate, RATE).astype(np.float64)
    if kind == "noisy":
        noise = np.random.default_rng(rank(name) % 2**32).standard_normal(len(samples))
        samples = samples + noise * np.sqrt(np.mean(samples**2))
    samples = samples / max(1.0, np.abs(samples).max())
    with wave.open(str(out / kind / f"{name}.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(np.round(samples * 32767).astype("<i2").tobytes())


SETS = {"flickr": flickr, "emoji": emoji, "video": video, "grid": grid}


def main() -> None:
    """Read the command and do it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sets", nargs="+", choices=tuple(SETS), default=list(SETS))
    parser.add_argument("--few", type=int, help="only so many pictures or clips, to try it")
    given = parser.parse_args()
    for name in given.sets:
        folder = given.out / name
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "done").exists():
            SETS[name](given.data, folder, given.few)
            (folder / "done").touch()
        print(name, {path.stem: sum(1 for _ in path.open()) for path in sorted(folder.rglob("*.jsonl"))}, flush=True)


if __name__ == "__main__":
    run_main(main)
