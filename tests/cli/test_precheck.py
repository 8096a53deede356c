"""Precheck: a wrong key is told before torch is imported, in the words of the full check; what is right passes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import heddle
from heddle.cli.annotate import annotated_yaml
from heddle.cli.main import main
from heddle.cli.precheck import precheck, split_target
from heddle.cli.train import resolve
from heddle.core import Config, ConfigError, encode, fields_of
from heddle.core.config import walk
from heddle.core.system import parse_yaml, to_yaml
from heddle.models.presets import PresetConfig
from heddle.recipes import RECIPES
from heddle.training import RunConfig

WRONG = [
    ["training.stpes=3"],
    ["trainign.steps=3"],
    ["model.widht=3"],
    ["model.kv_heads=2"],
    ["training.steps=many"],
    ["training.reduction=slow"],
    ["data.split.fractoin=0.1"],
    ["translate", "data.sources.0.sorce=x"],
    ["training.optimizer=adamw", "training.optimizer.momentum=0.9"],
    ["lstm", "model.heads=2"],
    ["objective={kind: next_token, smooth: 0.1}"],
    ["stop.patience=soon"],
    ["data.shortset=5"],
    ["model.name=gpt2", "model.kv_heads=2"],
    ["training.schedule={kind: cosine, warmpu: 3}"],
    ["gpt2", "training.optimizer.betas=[0.9]"],
]
RIGHT = [
    ["training.micro=4"],  # its old name
    ["training.optimizer.rate=0.1"],
    ["model=lstm_lm", "model.layers=1"],
    ["model.plan.times=2"],
    ["model.name=gpt2", "model.layers=1"],
    ["tokenizer=byte", "training.optimizer={kind: adamw, eps: 1e-6}", "training.optimizer.betas=[0.9, 0.9]"],
    ["data=some.txt", "data.shortest=5"],
    ["training.average.decay=0.9", "training.average.kind=moving"],
    ["training.average=moving", "training.average.decay=0.9"],
    ["training.optimizer.momentum=0.9"],
    ["training.optimizer.rest.eps=1e-6"],
    ["translate", "data.sources.0.source=x", "training.batch=64"],
    ["finetune", "adapters.rank=4", "init=runs/x"],
]


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_a_wrong_key_is_told_in_the_words_of_the_full_check(words: list[str], tmp_path: Path) -> None:
    target = words[0] if "=" not in words[0] else None
    overrides = words[1:] if target else words
    with pytest.raises(ConfigError) as full:
        resolve(target, overrides, tmp_path)
    with pytest.raises(ConfigError) as early:
        precheck(target, overrides, tmp_path)
    assert str(early.value) == str(full.value)


@pytest.mark.parametrize("words", RIGHT, ids=" ".join)
def test_what_is_right_or_unknown_passes(words: list[str], tmp_path: Path) -> None:
    target, overrides = split_target(words[0], words[1:])
    precheck(target, overrides, tmp_path)


def test_config_files_and_runs_are_checked(tmp_path: Path) -> None:
    good = encode(RECIPES["first"]())
    (tmp_path / "good.yaml").write_text(to_yaml(good))
    precheck(str(tmp_path / "good.yaml"), ["training.steps=3"], tmp_path)
    (tmp_path / "bad.yaml").write_text(to_yaml(good | {"keep": {"lest": 3}}))
    with pytest.raises(ConfigError, match=r"keep\.lest: .*'last'"):
        precheck(str(tmp_path / "bad.yaml"), [], tmp_path)
    (tmp_path / "own" / "one").mkdir(parents=True)
    (tmp_path / "own" / "one" / "config.json").write_text(json.dumps(good))
    with pytest.raises(ConfigError, match="'steps'"):
        precheck("one", ["training.stesp=4"], tmp_path / "own")


def test_a_typo_and_the_list_cost_less_than_a_second_and_no_torch(tmp_path: Path) -> None:
    """CPU time, which does not depend on how busy the machine is; torch alone takes two seconds."""
    environment = os.environ | {"PYTHONPATH": str(Path(heddle.__path__[0]).parent)}
    for words in (["train", "training.stpes=3"], ["list"], ["help", "threads"], ["plot"]):
        code = (
            "import sys, time; from heddle.cli.main import main; main(sys.argv[1:]); "
            "assert 'torch' not in sys.modules, 'torch'; print(time.process_time(), file=sys.stderr)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True, env=environment
        )
        assert done.returncode == 0, done.stderr
        assert float(done.stderr.splitlines()[-1]) < 1.0, words


# --- train --print ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_the_printed_config_has_sentences_and_loads(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", name, "--print"]) == 0
    text = capsys.readouterr().out
    (tmp_path / "mine.yaml").write_text(text)
    assert resolve(str(tmp_path / "mine.yaml"), []).config == RECIPES[name]()
    assert "# gradient clipping: the largest norm of the gradient" in text


def test_comments_never_become_part_of_a_value() -> None:
    config = RunConfig(frozen=("a # b", "c: d\ne", "x " * 80), init="y # z")
    read = parse_yaml(annotated_yaml(config))
    assert read["frozen"] == list(config.frozen) and read["init"] == config.init


@pytest.mark.parametrize("name", RECIPES)
def test_every_key_that_is_printed_can_be_set(name: str, tmp_path: Path) -> None:
    """U13: options that a preset does not have are not printed, and are refused at once."""
    config = RECIPES[name]()
    for path, part in walk(config):
        for key, value in fields_of(part).items():
            where = f"{path}.{key}" if path else key
            comes_with_init = config.init is not None and where.startswith(("model", "tokenizer"))
            if comes_with_init or key in part.left_out() or isinstance(value, Config | tuple | dict):
                continue
            given = 2 if value is None and isinstance(part, PresetConfig) and key != "dropout" else value
            typed = (
                given if isinstance(given, str) else to_yaml(given).splitlines()[0]
            )  # a text is taken as it is typed
            resolve(name, [f"{where}={typed}"], tmp_path)
    with pytest.raises(ConfigError, match="kv_heads: want one of layers"):
        RunConfig(model=PresetConfig(name="first", kv_heads=2))
