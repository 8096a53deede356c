"""The table of docs/narang.md is what the models are, and the models are what the paper's table says."""

import re
from pathlib import Path

import pytest

from heddle.core import diff, find
from heddle.models import summarize
from heddle.models.presets import PresetConfig, preset, presets
from heddle.nn.attention import AttentionConfig, CrossAttentionConfig
from heddle.nn.channels import FeedForwardConfig
from heddle.nn.stack import RepeatConfig

PAGE = (Path(__file__).parents[2] / "docs" / "narang.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (\S+) \| (.+?) \| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| (\d+) \|$", re.MULTILINE)
ROWS = {row[0]: row[2:] for row in ROW.findall(PAGE)}
APART = {"funnel-transformer"}  # its ops are a quarter of the common convention's in the paper


def test_all_fifty_two_rows_are_there() -> None:
    assert len(ROWS) == 52
    assert {f"narang/{slug}" for slug in ROWS} <= set(presets())


@pytest.mark.parametrize("slug", ROWS)
def test_row_is_as_the_paper_says(slug: str) -> None:
    paper, ours, paper_ops, our_ops, flops = map(float, ROWS[slug])
    found = summarize(PresetConfig(name=f"narang/{slug}"))
    assert found.parameters / 1e6 == pytest.approx(ours, abs=0.006)
    assert abs(found.parameters / 1e6 - paper) <= max(1, 0.02 * paper)
    assert found.paper_ops is not None
    assert found.paper_ops / 1e12 == pytest.approx(our_ops, abs=0.006)
    assert found.flops_per_token_forward / 1e6 == pytest.approx(flops, abs=1)
    near = abs(found.paper_ops / 1e12 - paper_ops) <= 0.03 * paper_ops
    assert near != (slug in APART)


@pytest.mark.parametrize("sizes", [{}, {"layers": 4, "width": 48, "heads": 6}, {"layers": 3, "width": 24, "heads": 2}])
@pytest.mark.parametrize("slug", [slug for slug in ROWS if slug != "vanilla-transformer"])
def test_a_variant_differs_from_the_base_at_any_size(slug: str, sizes: dict[str, int]) -> None:
    base, variant = (preset(f"narang/{s}").config(**sizes) for s in ("vanilla-transformer", slug))
    assert diff(base, variant)


@pytest.mark.parametrize(("slug", "layers", "heads", "hidden"), [
    ("24-layers", 8, 3, 96), ("18-layers", 6, 4, 128), ("8-layers", 3, 9, 288), ("6-layers", 2, 12, 384),
])  # fmt: skip
def test_depths_are_relative_to_the_base(slug: str, layers: int, heads: int, hidden: int) -> None:
    config = preset(f"narang/{slug}").config(layers=4, width=48, heads=6, vocab=100, context=16)
    parts = find(config, AttentionConfig) + find(config, CrossAttentionConfig)
    assert {(part.heads, part.head_width) for part in parts} == {(heads, 8)}
    assert {part.hidden for part in find(config, FeedForwardConfig)} == {hidden}
    assert {plan.times for plan in find(config, RepeatConfig)} == {layers}


def test_sane_forms_named_on_the_page_exist() -> None:
    for name in re.findall(r"`(narang/[a-z0-9-]+)`", PAGE):
        assert name in presets(), name


def test_the_printed_difference_is_the_real_one() -> None:
    base, variant = (preset(f"narang/{s}").config() for s in ("vanilla-transformer", "transparent-attention"))
    changes = diff(base, variant)
    assert changes and all(str(change) in PAGE for change in changes)
