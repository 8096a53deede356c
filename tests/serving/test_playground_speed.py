"""How fast the playground is: usable within 300 ms, frames within 16 ms at 2,000 tokens, 512 tokens x 144 heads in 1 s.

Times are CPU times of the page's main thread, painting included, so that a loaded machine does not fail them.
"""

import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsers import Stopwatch, in_browser
from serving.playground import Tab
from serving.server import Running, save, serving

import heddle
from heddle.models.presets import PRESETS
from heddle.text.tokenizers import ByteTokenizer

FRAME = 0.016  # seconds
TOKENS = 2000
pytestmark = in_browser


def test_the_page_is_usable_within_300_ms(browser: Any, server: Running) -> None:
    tab = Tab(browser, server.url)
    with Stopwatch(tab.page) as watch:
        tab.page.reload()
        tab.page.wait_for_selector("html[data-ready]", state="attached")
    clock = tab.page.locator("html").get_attribute("data-ready")
    print(f"main thread {1000 * watch.seconds:.0f} ms, by the clock {clock} ms")
    assert watch.seconds < 0.3
    tab.close()


def test_frames_at_two_thousand_tokens_take_less_than_16_ms(browser: Any, server: Running) -> None:
    tab = Tab(browser, server.url)
    tab.use("lstm", "ab cd efg. " * (TOKENS // 11))
    tab.page.wait_for_load_state("networkidle")
    before = tab.page.locator("#tokens .block").count()
    tab.page.evaluate("import('/static/tokens.js').then((found) => { window.written = found.append; })")
    tab.page.wait_for_function("() => Boolean(window.written)")
    times = []
    for number in range(60):
        with Stopwatch(tab.page) as watch:
            tab.page.evaluate(NEXT_FRAME, f"t{number}")
        times.append(watch.seconds)
    print(f"a token: median {1000 * statistics.median(times):.1f} ms, most {1000 * max(times):.1f} ms")
    assert sorted(times)[-3] < FRAME, times  # but for two, which another's interrupt may have hit
    assert tab.page.locator("#tokens .block").count() >= before >= TOKENS // 64
    assert tab.page.locator("#tokens .chip").count() < 800, "what is out of view has no chips"
    last = tab.page.locator("#tokens .chip").last
    assert last.inner_text() == "t59" and last.is_visible()
    scrolled = []
    for place in range(0, 30):
        with Stopwatch(tab.page) as watch:
            tab.page.evaluate(SCROLL, place / 30)
        scrolled.append(watch.seconds)
    print(f"a scroll: median {1000 * statistics.median(scrolled):.1f} ms, most {1000 * max(scrolled):.1f} ms")
    assert statistics.median(scrolled) < FRAME
    tab.close()


# Tokens come as the stream brings them; a frame later they are on the screen.
NEXT_FRAME = """text => new Promise((done) => {
  window.written(text, -1.5);
  requestAnimationFrame(() => requestAnimationFrame(done));
})"""
SCROLL = """share => new Promise((done) => {
  const box = document.querySelector(".chips.long");
  box.scrollTop = share * box.scrollHeight;
  requestAnimationFrame(() => requestAnimationFrame(done));
})"""


def test_a_long_row_is_walked_and_chosen_like_a_short_one(browser: Any, server: Running) -> None:
    tab = Tab(browser, server.url)
    tab.use("lstm", "ab cd efg. " * 60)
    last = tab.page.locator("#tokens .chip.next")
    assert last.is_visible(), "the row is scrolled to the chosen token"
    last.focus()
    tab.page.keyboard.press("Home")
    tab.page.keyboard.press("ArrowRight")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector("#bars[data-place='0']")
    chosen = tab.page.locator("#tokens .chip[aria-pressed='true']")
    assert chosen.count() == 1 and chosen.inner_text() == "a"
    assert chosen.get_attribute("title").startswith("text 1: a (id 97)")
    tab.close()


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Path]]:
    """Serve a model of 144 heads and 512 tokens."""
    pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
    folder, tokenizer = tmp_path_factory.mktemp("wide"), ByteTokenizer().train([])
    config = PRESETS["gpt2"].config(layers=12, width=144, heads=12, vocab=tokenizer.vocab, context=512)
    path = save(folder / "wide", config, tokenizer)
    with serving({"wide": path}, folder / "log", key=None) as running:
        yield running, path


@pytest.mark.full
def test_attention_of_512_tokens_and_144_heads_is_drawn_within_a_second(browser: Any, wide: Any) -> None:
    server, path = wide
    tab, text = Tab(browser, server.url, key=None), ("Once upon a time, " * 40)[:511]
    tab.idle()
    with Stopwatch(tab.page) as watch:
        tab.use("wide", text)
        tab.page.wait_for_selector("#map[data-map='0 0']")
        tab.page.wait_for_function(DRAWN, timeout=8000)
    print(f"all maps {1000 * watch.seconds:.0f} ms of the main thread")
    assert tab.page.locator("#grid canvas").count() == 144 and watch.seconds < 1
    with Stopwatch(tab.page) as watch:
        tab.page.click("#grid [data-map='7 5']")
        tab.page.wait_for_selector("#map[data-map='7 5']")
    print(f"one map of {512 * 512} weights {1000 * watch.seconds:.0f} ms")
    wanted = heddle.load(path, device="cpu").explain(text, what="attention")["attention"].maps[7].weights[5]
    found = tab.cell("#map", 300, 17, 512, 512)
    told = tab.page.locator("#readout").inner_text()
    row, column = map(int, re.findall(r"[:→] (\d+) ", told))  # a cell is about a pixel wide
    assert abs(row - 300) <= 1 and abs(column - 17) <= 1, told
    assert found == pytest.approx(float(wanted[row, column]), abs=1e-5)
    tab.close()


# Thumbnails are drawn when they come into view, with the size of their codes: go to the first that is blank.
DRAWN = """() => {
  const blank = [...document.querySelectorAll('.thumb')].find((one) => one.width !== 65);
  if (blank) blank.scrollIntoView();
  return !blank;
}"""
