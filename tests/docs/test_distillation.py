"""docs/distillation.md is real: its commands run in order, at a small size; its table has the defaults of the code."""

import contextlib
import io
import json
import re
import shlex
from pathlib import Path

import pytest
from reliability.harness import write_text

from heddle.cli.main import main
from heddle.objectives import DistillationConfig

TEXT = (Path(__file__).parents[2] / "docs" / "distillation.md").read_text(encoding="utf-8")
BLOCKS = [block.splitlines() for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)]
SMALL = "training.steps=2 training.batch=2 training.micro_batch=null validation_rows=2 hardware.device=cpu"
TEACHER = "model.layers=4 model.width=16 model.heads=2"


def run(line: str) -> None:
    """Run a command at a small size; what it prints goes where the line says."""
    words, out = shlex.split(line, comments=True)[1:], None
    if ">" in words:
        words, out = words[: words.index(">")], Path(words[-1])
    trains, starts = (
        words[0] == "train" or words[1] == "teach",
        "init=" in line.replace("init=null", "") or "train distill" in line or "teach distill" in line,
    )
    pairs = words[1] in ("translate", "summarize")
    more = SMALL.split() if trains else ["--device", "cpu"]
    more += ["--max-tokens", "8"] if words[0] == "summarize" else []
    if trains and (not starts or "model=" in line):
        more += [word for word in TEACHER.split() if word.split("=")[0] not in line]
        more += ["model.hidden=32", "training.average_last=0"] if pairs else []
        more += ["tokenizer.vocab=290"] if pairs and "tokenizer=" not in line else []
    if trains and not pairs:
        more.append("rows.length=48")
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert main([*words, *more]) == 0, line
    if out is not None:
        out.write_text(said.getvalue())


@pytest.mark.parametrize("blocks", [(0, 1), (2, 5, 6), (3, 4)], ids=["encoder", "language model", "pairs"])
def test_the_commands_run(blocks: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = write_text(tmp_path / "my.txt", lines=120).read_text().splitlines()
    for name, texts in (("train", lines[:60]), ("val", lines[60:70])):
        (tmp_path / f"{name}.en").write_text("\n".join(texts) + "\n")
        (tmp_path / f"{name}.de").write_text("\n".join(text.upper() for text in texts) + "\n")
    for name, texts in (("texts", lines[:20]), ("valid", lines[20:24])):
        (tmp_path / f"{name}.csv").write_text("text,summary\n" + "".join(f'"{t}","{t[:9]}"\n' for t in texts))
    pairs = [{"prompt": line[:20], "chosen": line[20:], "rejected": line[20:] + " no"} for line in lines]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    said = [
        [{"role": "user", "content": a}, {"role": "assistant", "content": b}] for a in lines[:60] for b in ("y", "n")
    ]
    chats = [{"chosen": one, "rejected": other} for one, other in zip(said[::2], said[1::2], strict=True)]
    (tmp_path / "chat_pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in chats))
    for line in (line for block in blocks for line in BLOCKS[block]):
        run(line)
    if 3 in blocks:
        assert len((tmp_path / "teacher.de").read_text().splitlines()) == 60, "a line for each line"
        taught = [json.loads(line) for line in (tmp_path / "taught.jsonl").read_text().splitlines()]
        assert [one["text"] for one in taught] == lines[:20] and all("summary" in one for one in taught)


def test_the_defaults_are_those_of_the_code() -> None:
    found = dict(re.findall(r"\| `(\w+_weight)` \| (\d+) \|", TEXT))
    config = DistillationConfig()
    wanted = config.soft_weight, config.hard_weight, config.cosine_weight
    assert tuple(float(found[name]) for name in ("soft_weight", "hard_weight", "cosine_weight")) == wanted
    assert config.temperature == 2 and "temperature T = 2" in TEXT
