"""The map on docs/models.md is real: its code runs, no part or preset is missing, what it refuses is refused.

`PYTHONPATH=tests python tests/docs/test_models.py` writes the page's outputs anew, after its code was changed.
"""

import contextlib
import io
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from laws.cases import ATTENTION, CROSS, EXPERTS, FAMILIES, around, encoder, own, pair, tower

from heddle.cli.main import main
from heddle.core import ConfigError, replace
from heddle.models import summarize
from heddle.models.networks import TieConfig, TowerConfig
from heddle.models.presets import PresetConfig, presets
from heddle.nn.base import PartConfig
from heddle.nn.channels import ExpertChoiceConfig, FixupFeedForwardConfig, NoLoadBalancingConfig
from heddle.nn.outputs import MaskedTokenOutputConfig, SequenceClassOutputConfig, TokenClassOutputConfig
from heddle.nn.positions import RotaryPositionConfig
from heddle.nn.recurrent import (
    AttentionRNNConfig,
    BidirectionalConfig,
    DotAlignmentConfig,
    EveryStepConfig,
    FirstStateConfig,
    LSTMConfig,
    QRNNConfig,
)
from heddle.nn.sources import PatchEmbeddingConfig
from heddle.nn.stack import ChainConfig, LoopConfig, PlanConfig, PoolConfig, TransparentConfig

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "models.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<output>.*?)```\n)?", re.DOTALL)


def blocks(page: str) -> Iterator[tuple[int, str, str]]:
    """Yield each block's line number, its code and the output that the page shows."""
    for match in BLOCK.finditer(page):
        yield page.count("\n", 0, match.start()) + 2, match["code"], match["output"] or ""


def printed(code: str, line: int, names: dict[str, Any]) -> str:
    """Run a block and return what it prints; a fault is told with the page's own line."""
    heard = io.StringIO()
    with contextlib.redirect_stdout(heard):
        exec(compile("\n" * (line - 1) + code, str(PAGE), "exec"), names)
    return heard.getvalue()


def test_the_code_prints_what_the_page_says() -> None:
    names: dict[str, Any] = {"__name__": "models"}
    for line, code, output in blocks(TEXT):
        assert printed(code, line, names) == output, f"{PAGE.name}:{line}"


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (mine,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    Path("mine.yaml").write_text(mine)
    lines = [line for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]
    assert len(lines) >= 5
    for line in lines:
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(shlex.split(line, comments=True)[1:]) == 0, line


def test_every_part_is_on_the_map() -> None:
    named = set(re.findall(r"`(\w+)(?:: \w+)?`", TEXT + (DOCS / "positions.md").read_text(encoding="utf-8")))
    kinds = {kind for family in (*FAMILIES, PartConfig) for kind in own(family)}
    assert sorted(kinds - named) == []


def test_every_preset_is_there_with_its_parameters() -> None:
    rows = dict(re.findall(r"^\| `([\w.-]+)` \| ([\d,]+) \|", TEXT, re.MULTILINE))
    assert sorted(rows) == sorted(name for name in presets() if not name.startswith("narang/"))
    for name, count in rows.items():
        assert f"{summarize(PresetConfig(name=name)).parameters:,}" == count, name


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", TEXT):
        assert (DOCS / link).exists(), link


def chained(plan: PlanConfig) -> ChainConfig:
    return ChainConfig(bodies=(around(ATTENTION).plan, plan))


CHOOSERS = replace(EXPERTS, router=ExpertChoiceConfig(), balance=NoLoadBalancingConfig())
LSTM = tower(LSTMConfig())
CLASSES = TokenClassOutputConfig(classes=3)
PATCHES: dict[str, Any] = {"vocab": None, "embedding": PatchEmbeddingConfig(size=4)}

# What the page's table says is refused, and the field that the refusal names.
REFUSED: dict[str, tuple[str, Callable[[], Any]]] = {
    "bidirectional, past": ("sight", lambda: around(BidirectionalConfig())),
    "pool, language model": ("plan", lambda: replace(around(ATTENTION), plan=chained(PoolConfig()))),
    "pool, decoder": ("sight", lambda: pair(decoder=replace(tower(ATTENTION, CROSS), plan=chained(PoolConfig())))),
    "transparent over a pool": (
        "tap",
        lambda: pair(replace(tower(ATTENTION), plan=chained(PoolConfig())), tap=TransparentConfig()),
    ),
    "expert choice, past": ("router", lambda: around(ATTENTION, CHOOSERS)),
    "expert choice, balanced": ("balance", lambda: replace(EXPERTS, router=ExpertChoiceConfig())),
    "cross-attention alone": ("plan", lambda: around(ATTENTION, CROSS)),
    "attentive alone": ("plan", lambda: around(AttentionRNNConfig())),
    "dot alignment of unequal widths": (
        "alignment",
        lambda: pair(decoder=tower(AttentionRNNConfig(cell=LSTMConfig(hidden=8), alignment=DotAlignmentConfig()))),
    ),
    "first state, nothing carried": ("bridge", lambda: pair(bridge=FirstStateConfig())),
    "every step, nothing carried": ("bridge", lambda: pair(bridge=EveryStepConfig())),
    "bridge into a loop": (
        "decoder.plan",
        lambda: pair(decoder=TowerConfig(plan=LoopConfig(body=LSTM.plan, turns=2)), bridge=FirstStateConfig()),
    ),
    "attentive QRNN": ("cell", lambda: pair(decoder=tower(AttentionRNNConfig(cell=QRNNConfig())))),
    "experts of another form": ("expert", lambda: around(ATTENTION, replace(EXPERTS, expert=FixupFeedForwardConfig()))),
    "heads of unequal width": (
        "plan",
        lambda: replace(around(ATTENTION, replace(ATTENTION, head_width=6)), position=RotaryPositionConfig()),
    ),
    "pooled output, no pooling": (
        "pooling",
        lambda: encoder(pooling=None, outputs=(SequenceClassOutputConfig(classes=2),)),
    ),
    "two outputs of one name": ("outputs", lambda: encoder(outputs=(CLASSES, CLASSES))),
    "masked tokens of images": ("outputs", lambda: encoder(**PATCHES, outputs=(MaskedTokenOutputConfig(),))),
    "ties of unequal shape": (
        "ties",
        lambda: replace(around(ATTENTION), ties=(TieConfig(share="norm.weight", of="embedding.weight"),)),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_page_refuses_is_refused_in_one_line(name: str) -> None:
    field, make = REFUSED[name]
    with pytest.raises(ConfigError) as refusal:
        make().build()
    assert "\n" not in str(refusal.value)
    assert str(refusal.value).split(":")[0].endswith(field), refusal.value


if __name__ == "__main__":
    names: dict[str, Any] = {"__name__": "models"}
    outputs = [printed(code, line, names) for line, code, _ in blocks(TEXT)]
    fill = iter(outputs)

    def filled(match: re.Match[str]) -> str:
        output = next(fill)
        return f"```python\n{match['code']}```\n" + (f"\n```text\n{output}```\n" if output else "")

    PAGE.write_text(BLOCK.sub(filled, TEXT), encoding="utf-8")
    sys.exit(0)
