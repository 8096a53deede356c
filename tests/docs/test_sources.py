"""docs/sources.md is real: its commands run on tiny synthesized sounds, its code prints what the page says."""

import contextlib
import io
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from data.sounds import RATE, tones, words, write_folder, write_wav

from heddle.cli.main import main

PAGE = Path(__file__).parents[2] / "docs" / "sources.md"
TEXT = PAGE.read_text(encoding="utf-8")
SMALL = [
    *("model.layers=1", "model.width=32", "model.heads=2", "model.hidden=48", "hardware.device=cpu"),
    *("training.batch=4", "training.schedule.warmup=1", "hardware.dtype=float32", "rows.length=16"),
    *("every.validate=1000", "every.sample=1000", "training.average_last=0"),
]
FEATURES = [f"data.sources.0.sample_rate={RATE}", f"rows.features.sample_rate={RATE}", "rows.features.mels=16"]
OF_SOUND = ("heddle.data.media.features", "heddle.data.media.augmentation")
LETTERS = ["model.layers=1", "model.width=16", "training.steps=2", "training.batch=2", "rows.length=8"]
LETTERS += ["training.schedule.warmup=1", "hardware.device=cpu"]


def adapted(words_: list[str], steps: int) -> list[str]:
    """Return a command of the page, made small; what it says itself comes last."""
    if words_[:2] == ["train", "lstm_characters"]:
        return [*words_, *LETTERS]
    if words_[0] == "train":
        data, own = ([word for word in words_[2:] if word.startswith("data=") is first] for first in (True, False))
        return [*words_[:2], *data, *SMALL, *FEATURES, *own, f"training.steps={steps}"]
    return [word for word in words_ if word not in (">", "lists.jsonl")] + ["--device", "cpu"]


def files(folder: Path) -> None:
    """Write what the page names: sounds with texts, new ones, a long one in a manifest, and texts alone."""
    texts = write_folder(folder / "sounds", 40)
    write_folder(folder / "new", 3, seed=9)
    (folder / "new" / "000.wav").rename(folder / "new" / "0.wav")
    (folder / "new" / "000.txt").rename(folder / "new" / "0.txt")
    (folder / "new" / "001.wav").rename(folder / "new" / "1.wav")
    (folder / "new" / "001.txt").rename(folder / "new" / "1.txt")
    write_wav(folder / "new.wav", tones("abc"))
    write_wav(folder / "long.wav", tones("".join(words(12, seed=4))))
    table = re.search(r"```text\n(path\ttext.*?)```", TEXT, re.DOTALL)
    assert table is not None
    rows = [f"long.wav\tbc\tben{n}\ttrain\t{0.1 * n:.1f}\t0.4" for n in range(12)]
    (folder / "list.tsv").write_text(table[1] + "\n".join(rows) + "\n")
    (folder / "texts.txt").write_text("\n".join(texts) + "\n")


def commands() -> list[list[str]]:
    """Return the commands of the page."""
    lines = [line for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines]


def test_the_commands_and_the_code_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files(tmp_path)
    monkeypatch.chdir(tmp_path)
    found = commands()
    assert len(found) == 9
    for line in found:
        assert main(adapted(line, steps=2)) == 0, (line, capsys.readouterr().err)
    assert main(adapted(["train", "transcribe_ctc", "data=sounds"], steps=2)) == 0
    told = capsys.readouterr()
    assert "WER" in told.err and '"candidates"' in told.out
    for code, output in re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", TEXT, re.DOTALL):
        heard = io.StringIO()
        names: dict[str, Any] = {}
        with contextlib.redirect_stdout(heard):
            exec(code, names)
        assert heard.getvalue() == output


@pytest.mark.full
def test_the_recipe_learns_to_transcribe_tones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    write_folder(tmp_path / "sounds", 150)
    write_folder(tmp_path / "new", 20, seed=9)
    monkeypatch.chdir(tmp_path)
    line = ["train", "transcribe", "data=sounds", "rows.augment=[]", "training.optimizer.learning_rate=3e-3"]
    assert main(adapted([*line, "training.schedule.warmup=20"], steps=300)) == 0
    capsys.readouterr()
    assert main(["transcribe", "new", "--reference", "beside", "--device", "cpu"]) == 0
    rates = re.search(r"CER ([\d.]+) %", capsys.readouterr().err)
    assert rates is not None and float(rates[1]) < 20


def test_every_kind_that_the_page_names_is_there() -> None:
    from heddle.core import kinds
    from heddle.data.media import AugmentationConfig, FeaturesConfig

    named = set(re.findall(r"`(\w+)`", TEXT))
    for family in (AugmentationConfig, FeaturesConfig):
        own = {kind for kind, cls in kinds(family).items() if cls.__module__ in OF_SOUND}
        assert own <= named, sorted(own - named)
