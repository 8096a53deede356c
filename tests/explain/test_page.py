"""The HTML file: it needs nothing else, its numbers are those of the JSON, and no token becomes markup."""

import base64
import contextlib
import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from browsers import DESKTOP, KEPT, PHONE, chromium, in_browser, violations, with_axe
from cli.runs import TOKENIZER, config, loud_model

from heddle.explain import ExplainOptions, Explanation, explain
from heddle.explain.display import page
from heddle.lm import LM
from heddle.models.presets import build

HOSTILE = "</script><b id=pwned onclick=x>b</b>\u202eabc\x00<!--&amp;$DATA"
WHAT = "probabilities,attention,lens,residual,attribution,beams,trace"


@pytest.fixture(scope="module")
def shown() -> Explanation:
    return LM(loud_model(config()).eval(), TOKENIZER).explain(HOSTILE[:40], what=WHAT, max_tokens=3)


def lines_of(text: str) -> list[str]:
    found = re.search(r'id="data">(.*?)</script>', text, re.S)
    assert found
    return found[1].strip().split("\n")


def data_of(text: str) -> dict[str, Any]:
    """Return the page's data as its script reads it, with its arrays unpacked."""
    head, *blobs = lines_of(text)
    data: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(head)))
    for one in data.get("attention", []):
        array = one["weights"]
        raw = zlib.decompress(base64.b64decode(blobs[array["blob"]]))
        numbers = np.frombuffer(raw, "<f4" if array["code"] == "f32" else np.uint8).astype(np.float64)
        if array["code"] != "f32":
            numbers = (numbers / array["levels"]) ** (2 if array["code"] == "root" else 1)
        one["read"] = numbers.reshape(array["shape"])
    return data


def test_the_page_has_the_numbers_of_the_json(shown: Explanation) -> None:
    page, plain = data_of(shown.html()), json.loads(shown.to_json())
    for name in ("sequences", "probabilities", "lens", "residual", "attribution", "beams", "refused"):
        assert page[name] == plain[name], name
    for own, kept in zip(page["attention"], plain["attention"], strict=True):
        assert np.array_equal(own["read"].astype(np.float32), np.array(kept["weights"], np.float32))
    assert [step["name"] for step in page["trace"]] == [step["name"] for step in plain["trace"]]


def test_the_page_loads_nothing_and_runs_its_own_script_alone(shown: Explanation) -> None:
    text = shown.html()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    style, script = re.search(r"<style>(.*?)</style>", text, re.S), re.findall(r"<script>(.*?)</script>", text, re.S)
    assert policy and style and len(script) == 1 and policy[1].startswith("default-src 'none';")
    for content in (style[1], script[0]):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy[1]
    assert not re.search(r"https?://|@import|url\(|innerHTML|eval\(", text)
    assert "pwned" not in text and "onclick=x" not in text  # tokens are in the packed data alone


def test_a_long_text_is_kept_in_bytes_and_says_how_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = build("gpt2", layers=2, width=32, heads=4, vocab=50, context=64).eval()
    found = explain(model, None, list(range(48)), ExplainOptions(what=("attention",)))
    monkeypatch.setattr(page, "EXACT", 1000)
    for budget, levels in ((10**9, 255), (1, 3)):
        monkeypatch.setattr(page, "BUDGET", budget)
        for own, kept in zip(data_of(found.html())["attention"], found["attention"].maps, strict=True):
            assert own["weights"]["levels"] == levels
            assert np.abs(own["read"] - kept.weights.numpy()).max() <= own["weights"]["error"] + 1e-7


@in_browser
@pytest.mark.full
def test_512_tokens_and_144_heads_fit_into_seven_megabytes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = build("gpt2", layers=12, width=192, heads=12, vocab=300, context=512).eval()
    text = explain(model, None, torch.randint(300, (512,)).tolist()).html()
    assert len(text.encode()) <= 7_000_000
    with browser(tmp_path) as opened:
        tab = opened(text)
        assert int(tab.locator("html").get_attribute("data-ready")) < 1000


# --- in a browser -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def browser(folder: Path, theme: str = "light") -> Iterator[Any]:
    """Open pages from files, without a network."""
    with chromium() as started:
        context = started.new_context(offline=True, color_scheme=theme)

        def opened(text: str) -> Any:
            (folder / "page.html").write_text(text, encoding="utf-8")
            tab = context.new_page()
            faults: list[str] = []
            tab.on("pageerror", lambda error: faults.append(str(error)))
            tab.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
            tab.on("request", lambda made: None if made.url.startswith("file:") else faults.append(made.url))
            tab.goto((folder / "page.html").as_uri())
            tab.wait_for_selector("html[data-ready]", state="attached")
            assert faults == []
            return tab

        yield opened


@in_browser
@pytest.mark.slow
def test_a_browser_shows_the_numbers_of_the_json(shown: Explanation, tmp_path: Path) -> None:
    plain = json.loads(shown.to_json())
    with browser(tmp_path) as opened:
        tab = opened(shown.html())
        chips = tab.locator("#text .chip")
        words = plain["sequences"][0]["tokens"]
        assert chips.count() == len(words) and tab.locator("#pwned").count() == 0
        place = len(words) - 2
        chips.nth(place).click()
        for bar, best in zip(
            tab.locator("#bars .bar").all(), plain["probabilities"]["places"][place]["best"], strict=True
        ):
            assert bar.locator("em").inner_text() == f"{100 * best['probability']:.2f} %"
        title = chips.nth(place).get_attribute("title")
        bits = float(re.search(r"([\d.e-]+) bits", title)[1])
        assert bits == pytest.approx(plain["probabilities"]["surprisals"][place], rel=1e-5)
        tab.locator("#attention canvas.thumb").nth(1).click()
        big = tab.locator("#map")
        big.scroll_into_view_if_needed()
        box, count = big.bounding_box(), len(words)
        row, column = 3, 1
        tab.mouse.move(box["x"] + (column + 0.5) * box["width"] / count, box["y"] + (row + 0.5) * box["height"] / count)
        readout = tab.locator("#readout").inner_text()
        weight = plain["attention"][0]["weights"][1][row][column]
        assert float(readout.rpartition(": ")[2]) == pytest.approx(weight, rel=1e-6)
        tab.locator("#theme").click()
        assert tab.locator("html").get_attribute("data-theme") == "dark"


@in_browser
@pytest.mark.slow
def test_a_browser_shows_gates_and_crossed_attention_of_other_kinds(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with browser(tmp_path, "dark") as opened:
        for name, wanted in KINDS.items():
            tab = opened(of_kind(name).explain("abc", what=wanted, max_tokens=3).html())
            assert [tab.locator(f"#{one}").count() for one in wanted] == [1] * len(wanted), name


KINDS = {"lstm_lm": ["gates"], "seq2seq_attention": ["attention", "gates", "beams"], "mixtral-8x7b": ["experts"]}


def of_kind(name: str) -> LM:
    """Build a small model."""
    sizes = {"heads": 4, "kv_heads": 2, "hidden": 12, "experts": 4} if name == "mixtral-8x7b" else {}
    return LM(build(name, layers=2, width=16, vocab=TOKENIZER.vocab, context=32, **sizes).eval(), TOKENIZER)


@in_browser
@with_axe
@pytest.mark.slow
def test_axe_finds_no_violation_of_wcag_aa(shown: Explanation, tmp_path: Path) -> None:
    torch.manual_seed(0)
    pages = {"gpt": shown} | {name: of_kind(name).explain("abc", max_tokens=3) for name in KINDS}
    for theme in ("light", "dark"):
        with browser(tmp_path, theme) as opened:
            for name, found in pages.items():
                tab = opened(found.html())
                for size in (DESKTOP, PHONE):
                    tab.set_viewport_size(size)
                    assert violations(tab) == [], (name, theme)
                    if KEPT in os.environ:
                        kept = f"explain-{name}-{'phone' if size is PHONE else 'desktop'}-{theme}.png"
                        tab.screenshot(path=str(Path(os.environ[KEPT]) / kept), full_page=True)
