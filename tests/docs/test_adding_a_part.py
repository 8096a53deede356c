"""The part on docs/adding_a_part.md is real: its code runs, is short, and keeps every law."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from laws import laws
from laws.cases import CHANNEL, around

from heddle.core import ConfigError, kinds, replace
from heddle.models import LanguageModelConfig
from heddle.nn import Context, MixerConfig, Place

PAGE = Path(__file__).parents[2] / "docs" / "adding_a_part.md"
SOURCE = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]


@pytest.fixture(scope="module")
def page() -> ModuleType:
    """Run the page's code as a module, once."""
    name = "page_adding_a_part"
    if name not in sys.modules:
        module = ModuleType(name)
        sys.modules[name] = module  # configs look up their own field types there
        exec(compile(SOURCE, str(PAGE), "exec"), module.__dict__)
    return sys.modules[name]


def test_the_example_is_short() -> None:
    assert len([line for line in SOURCE.splitlines() if line.strip()]) <= 60


def test_the_library_does_not_have_it_yet() -> None:
    assert not any(cls.__module__.startswith("heddle.") for k, cls in kinds(MixerConfig).items() if "convolution" in k)


@pytest.mark.parametrize("law", laws.ALL, ids=lambda law: law.__name__)
def test_the_example_keeps_every_law(page: ModuleType, law: Callable[[LanguageModelConfig], None]) -> None:
    law(around(page.ShortConvolutionConfig(), CHANNEL))


@pytest.mark.parametrize("reach", [2, 5])
def test_the_example_equals_torch(page: ModuleType, reach: int) -> None:
    part = page.ShortConvolutionConfig(reach=reach).build(3, Place())
    torch.nn.init.normal_(part.weight)
    x = torch.randn(2, 7, 3)
    padded = torch.nn.functional.pad(x.mT, (reach - 1, 0))
    want = torch.nn.functional.conv1d(padded, part.weight.flip(-1)[:, None], groups=3).mT
    torch.testing.assert_close(part(x, Context()), want)


def test_the_example_carries_only_the_last_document(page: ModuleType) -> None:
    part = page.ShortConvolutionConfig(reach=4).build(3, Place()).double()
    torch.nn.init.normal_(part.weight)
    x = torch.randn(1, 7, 3).double()
    _, slot = part.step(x[:, :4], Context(documents=torch.tensor([[0, 0, 0, 1]])), None)
    y, _ = part.step(x[:, 4:], Context(), slot)
    torch.testing.assert_close(y, part(x[:, 3:], Context())[:, 1:])


def test_the_example_refuses_in_one_line(page: ModuleType) -> None:
    with pytest.raises(ConfigError, match="reach: want at least 2, got 1"):
        page.ShortConvolutionConfig(reach=1)
    with pytest.raises(ConfigError, match="sight: want past"):
        replace(around(page.ShortConvolutionConfig()), sight="all").build()


def test_the_page_names_files_and_words_that_exist() -> None:
    text, root = PAGE.read_text(encoding="utf-8"), PAGE.parents[1]
    for name in re.findall(r"`(nn/\w+\.py)`", text):
        assert (root / "src" / "heddle" / name).exists(), name
    cases = (root / "tests" / "laws" / "cases.py").read_text(encoding="utf-8")
    for word in ("EXAMPLES", "SMALL", "def idle"):
        assert word in cases
