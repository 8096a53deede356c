"""A new kind of rows is one file: defined outside the library, it trains through the ordinary command."""

import json
import os
import subprocess
import sys
from pathlib import Path

TRAIN = """
import sys
from data import document_rows
from heddle.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
SMALL = ["model.layers=1", "model.width=16", "model.heads=2", "tokenizer={kind: character}", "hardware.device=cpu"]
STEPS = ["training.steps=6", "training.batch=4", "every.log=1", "every.validate=3", "every.save=3"]


def command(folder: Path, *words: str) -> str:
    """Run the command line in a process that also knows the new rows; return what it prints."""
    paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    options = {"capture_output": True, "text": True, "check": False, "timeout": 240, "cwd": folder}
    done = subprocess.run([sys.executable, "-c", TRAIN, *words], env=os.environ | {"PYTHONPATH": paths}, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr[-2000:]
    return str(done.stdout)


def test_a_row_plan_in_one_file_trains_resumes_and_is_timed(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {n}: the cat sat on mat {n % 7}.\n" for n in range(200)))
    data = "data={sources: [{kind: text, path: text.txt, split: line}], split: {kind: hash, fraction: 0.1}}"
    command(tmp_path, "train", "first", data, "rows={kind: documents, length: 40}", *SMALL, *STEPS)
    run = tmp_path / "runs" / "first"
    assert json.loads((run / "config.json").read_text())["rows"] == {"kind": "documents", "length": 40}
    command(tmp_path, "train", str(run), "training.steps=8")
    losses = [
        line["loss"] for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if "loss" in line
    ]
    assert len(losses) == 8 and losses[-1] < losses[0]
    timed = command(tmp_path, "bench", "train", "first", "rows={kind: documents, length: 8}", *SMALL, "--steps", "1")
    assert "tokens/s" in timed
