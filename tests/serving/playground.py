"""The playground as a test uses it: a tab of a browser, what it asked for, what went wrong, and what it shows."""

import os
import re
from pathlib import Path
from typing import Any

from browsers import DESKTOP, KEPT
from serving.server import KEY

TEXT = "Once upon a <b>time</b>"
HOSTILE = '<img src=x onerror="document.title=1"></button><script>document.title=2</script>\u202eabc\x00'
IDLE = "body[aria-busy='false']"


class Tab:
    """A page of the playground, with what it asked for and what went wrong."""

    def __init__(self, browser: Any, url: str, key: str | None = KEY, **options: Any) -> None:
        self.context = browser.new_context(viewport=options.pop("viewport", DESKTOP), **options)
        self.page, self.url = self.context.new_page(), url
        self.asked: list[str] = []
        self.faults: list[str] = []
        self.page.on("request", lambda made: self.asked.append(made.url))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", lambda said: self.faults.append(said.text) if "401" not in said.text else None)
        self.page.goto(url)
        self.page.wait_for_selector("html[data-ready]", state="attached")
        if key is not None:
            self.unlock(key)

    def unlock(self, key: str) -> None:
        """Type a key that is right."""
        self.page.fill("#key", key)
        self.page.click("#key-form button")
        self.page.wait_for_selector("#work:not([hidden])")
        self.idle()

    def idle(self) -> None:
        """Wait until the page has done what it was told."""
        self.page.wait_for_selector(IDLE)

    def use(self, model: str, text: str = TEXT) -> None:
        """Look at a text with a model."""
        if self.page.input_value("#model") != model:
            self.page.select_option("#model", model)
            self.idle()
        self.page.fill("#prompt", text)
        self.do("#look")
        assert self.page.locator("#fault").is_hidden(), self.page.locator("#fault").inner_text()

    def do(self, button: str) -> None:
        """Press a button and wait."""
        self.page.click(button)
        self.idle()

    def write(self, tokens: int) -> None:
        """Let the model write."""
        self.page.locator("#max-tokens").evaluate("(node, value) => { node.value = value; }", tokens)
        self.do("#go")

    @property
    def chips(self) -> Any:
        """Return the chips of the row that is predicted, without that of the next token."""
        return self.page.locator("#rows .chips:last-child .chip:not(.next)")

    def bits(self) -> list[float | None]:
        """Return the surprisal that each chip shows."""
        found = self.chips.evaluate_all("all => all.map(one => one.dataset.bits)")
        return [float(one) if one else None for one in found]

    def ids(self) -> list[int]:
        """Return the ids of the row that is predicted."""
        titles = self.chips.evaluate_all("all => all.map(one => one.title)")
        return [int(re.search(r"\(id (\d+)\)", one)[1]) for one in titles]  # type: ignore[index]

    def expect(self, at: int, place: int | None = None) -> None:
        """Choose a token, and wait for what was expected in its place."""
        self.page.locator("#rows .chips:last-child .chip").nth(at).click()
        self.page.wait_for_selector(f"#bars[data-place='{at - 1 if place is None else place}']")

    def take(self, bar: Any) -> None:
        """Take a token instead of the chosen one, and wait until the text has gone on."""
        bar.locator("button").click()
        self.page.wait_for_timeout(50)
        self.idle()

    def cell(self, canvas: str, row: int, column: int, rows: int, columns: int) -> float:
        """Return the number that the page tells of a cell under the mouse."""
        found = self.page.locator(canvas)
        found.evaluate("(node) => node.scrollIntoView({ block: 'center' })")
        box = found.bounding_box()
        width, height = box["width"] - 2, box["height"] - 2  # without the border
        x, y = box["x"] + 1 + (column + 0.5) * width / columns, box["y"] + 1 + (row + 0.5) * height / rows
        self.page.mouse.move(x, y)
        return float(self.page.locator("#readout").inner_text().rpartition(": ")[2])

    def theme(self, name: str) -> None:
        """Show the page in a theme."""
        if self.page.locator("html").get_attribute("data-theme") != name:
            self.page.click("#theme")

    def keep(self, name: str) -> None:
        """Keep a screenshot where they are wanted."""
        if KEPT in os.environ:
            self.page.screenshot(path=str(Path(os.environ[KEPT]) / f"playground-{name}.png"), full_page=True)

    def bars(self, temperature: float) -> dict[int, float]:
        """Return the probabilities that the bars show at a temperature."""
        slide = "(node, value) => { node.value = value; node.dispatchEvent(new Event('input')); }"
        self.page.locator("#slider").evaluate(slide, temperature)
        read = "all => all.map(one => [Number(one.dataset.id), Number(one.dataset.probability)])"
        return dict(self.page.locator("#bars .bar").evaluate_all(read))

    def close(self) -> None:
        """Close it; nothing may have gone wrong, and nobody else been asked."""
        assert self.faults == []
        assert all(one.startswith((self.url, "data:")) for one in self.asked), self.asked
        self.context.close()


# Texts whose colour is less than 4.5 times as light or dark as what is behind them (WCAG AA).
CONTRAST = """() => {
  const parts = text => text.match(/[\\d.]+/g).map(Number);
  const light = rgb => { const [r, g, b] = rgb.slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = node => { for (let at = node; at; at = at.parentElement) {
    const found = parts(getComputedStyle(at).backgroundColor); if (found[3] !== 0) return found; } return []; };
  const low = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some(one => one.nodeType === 3 && one.textContent.trim());
    if (!own || !node.checkVisibility()) continue;
    const ink = light(parts(getComputedStyle(node).color)), page = light(behind(node));
    const ratio = (Math.max(ink, page) + 0.05) / (Math.min(ink, page) + 0.05);
    if (ratio < 4.5) low.push(`${node.tagName} ${node.textContent.slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return low;
}"""
# Controls without a name for a screen reader.
UNNAMED = """() => [...document.querySelectorAll("button, input, select, textarea, canvas[tabindex], [role=region]")]
  .filter(one => one.checkVisibility() && !(one.ariaLabel || one.textContent.trim() || one.labels?.length))
  .map(one => one.outerHTML.slice(0, 80))"""


def prompt_ids(lm: Any, text: str = TEXT) -> list[int]:
    """Return the ids of a text, as a language model reads it."""
    return [*lm.tokenizer.special_tokens.document_start, *lm.tokenizer.encode(text)]
