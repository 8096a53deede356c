"""The part on docs/adding_a_part.md is real: it keeps every law, works from outside, and is added as the page says."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from laws import laws
from laws.cases import CHANNEL, around, own

import heddle
import heddle.data.sources
import heddle.nn
import heddle.training.callbacks
from heddle.cli.main import main
from heddle.core import ConfigError, replace, user_code
from heddle.models.networks import LanguageModelConfig
from heddle.nn.base import Context, MixerConfig, Part, Place

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adding_a_part.md").read_text(encoding="utf-8")
SOURCE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
OUTSIDE = re.findall(r"## 2\. Write it: `(\w+\.py)`", PAGE)[0]
FILE = re.findall(r"becomes `(src/heddle/nn/\w+/\w+\.py)`", PAGE)[0]
NAME = re.findall(r"__init__\.py` import `(\w+)`", PAGE)[0]
KIND = re.findall(r'@part\("(\w+)"\)', SOURCE)[0]
COMMANDS, COMMAND = re.findall(r"```sh\n(.*?)\n```", PAGE, re.DOTALL)
TINY = "model.layers=1 model.width=16 model.heads=2 tokenizer=byte rows.length=32 training.batch=2 validation_rows=2"


@pytest.fixture(scope="module")
def page() -> ModuleType:
    """Run the page's code as a module, once."""
    name = "page_adding_a_part"
    if name not in sys.modules:
        module = ModuleType(name)
        sys.modules[name] = module  # configs look up their own field types there
        exec(compile(SOURCE, "adding_a_part.md", "exec"), module.__dict__)
    return sys.modules[name]


def built(page: ModuleType, width: int = 3) -> Part:
    """Build the part in double precision with weights that all have their say."""
    part: Part = page.AverageAttentionConfig(hidden=5).build(width, Place()).double()
    draw = torch.Generator().manual_seed(0)
    for weight in part.parameters():
        torch.nn.init.normal_(weight, generator=draw)
    return part


def test_the_example_is_short() -> None:
    assert len(SOURCE.splitlines()) < 60


def test_the_library_does_not_have_it_yet() -> None:
    assert KIND not in own(MixerConfig)
    assert not (ROOT / FILE).exists()
    assert NAME not in vars(heddle.nn.attention)


@pytest.mark.parametrize("law", laws.ALL, ids=lambda law: law.__name__)
def test_the_example_keeps_every_law(page: ModuleType, law: Callable[[LanguageModelConfig], None]) -> None:
    law(around(page.AverageAttentionConfig(), CHANNEL))


@pytest.mark.usefixtures("fresh_user_code")
def test_following_the_page_uses_the_part_from_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    Path(OUTSIDE).write_text(SOURCE, encoding="utf-8")
    Path("my.txt").write_text("".join(f"Line {i} of a text that says what line {i} is.\n" for i in range(200)))
    commands = [shlex.split(line, comments=True)[1:] for line in COMMANDS.splitlines()]
    assert [words[0] for words in commands] == ["check", "train", "generate", "train"]
    for words in commands:
        more = [*TINY.split(), "training.steps=2"] if "--use" in words else []
        small = [word.replace("training.steps=900", "training.steps=3") for word in words]
        assert main([*small, *more]) == 0, words
        if "--use" in words:
            Path(OUTSIDE).unlink()  # the run has kept it
        monkeypatch.setattr(user_code, "_loaded", {})
        monkeypatch.setattr(user_code, "_named", {})
    assert f"{len(laws.ALL)} of {len(laws.ALL)} laws hold" in capsys.readouterr().out
    assert list(Path("runs/first").rglob(f"code/*/{OUTSIDE}"))
    assert "AverageAttention" in str(heddle.load("runs/first").model)


@pytest.mark.slow
def test_following_the_page_adds_the_part_under_all_laws(tmp_path: Path) -> None:
    for folder in ("src", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / FILE).write_text(SOURCE, encoding="utf-8")
    door = (tmp_path / FILE).parent / "__init__.py"
    door.write_text(
        f"from heddle.nn.attention.{Path(FILE).stem} import {NAME}\n{door.read_text(encoding='utf-8')}",
        encoding="utf-8",
    )
    words = [sys.executable, *shlex.split(COMMAND)[1:], "-p", "no:cacheprovider"]
    here = os.environ | {"PYTHONPATH": str(tmp_path / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(words, cwd=tmp_path, env=here, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert done.stdout.count(".") >= len(laws.ALL)


def test_the_example_equals_the_formula(page: ModuleType) -> None:
    part, x = built(page), torch.randn(2, 7, 3, dtype=torch.float64)
    mean = torch.stack([x[:, : t + 1].mean(1) for t in range(7)], dim=1)
    g = torch.relu(mean @ part.up.weight.T + part.up.bias) @ part.down.weight.T + part.down.bias
    gates = torch.sigmoid(torch.cat((x, g), -1) @ part.gates.weight.T + part.gates.bias)
    torch.testing.assert_close(part(x, Context()), gates[..., :3] * x + gates[..., 3:] * g)


def test_the_example_carries_only_the_last_document(page: ModuleType) -> None:
    part, x = built(page), torch.randn(1, 7, 3, dtype=torch.float64)
    _, slot = part.step(x[:, :4], Context(documents=torch.tensor([[0, 0, 0, 1]])), None)
    y, _ = part.step(x[:, 4:], Context(), slot)
    torch.testing.assert_close(y, part(x[:, 3:], Context())[:, 1:])


def test_the_example_refuses_in_one_line(page: ModuleType) -> None:
    with pytest.raises(ConfigError, match="hidden: want at least 1, got 0"):
        page.AverageAttentionConfig(hidden=0)
    with pytest.raises(ConfigError, match="sight: want past"):
        replace(around(page.AverageAttentionConfig()), sight="all").build()


def test_the_page_names_files_and_words_that_exist() -> None:
    for name in re.findall(r"`((?:nn|models)/\w+/\w+\.py)`", PAGE):
        assert (ROOT / "src" / "heddle" / name).exists(), name
    groups = [module for module in vars(heddle.nn).values() if isinstance(module, ModuleType)]
    groups += [heddle.data.sources, heddle.training.callbacks]
    for name in set(re.findall(r"`(\w+Config)`", PAGE)) - {NAME}:
        assert any(name in vars(group) for group in groups), name
    files = ("tests/laws/cases.py", "src/heddle/models/laws/small_models.py")
    cases = "".join((ROOT / file).read_text(encoding="utf-8") for file in files)
    for word in ("EXAMPLES", "FAMILIES", "HOMES", "SMALL", "ENCODERS", "def idle", "def packs", "def splits"):
        assert word in cases, word
        assert word.removeprefix("def ") in PAGE, word
