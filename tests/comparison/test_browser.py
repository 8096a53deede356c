"""The reports of `heddle compare` and `heddle scale` in a real browser: they open offline, fit a desktop and a phone.

`make browser` sets Chromium, playwright and axe up, runs this, and keeps screenshots and the reports it looked at.
"""

import csv
import os
import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsers import DESKTOP, KEPT, PHONE, chromium, in_browser, violations, with_axe
from comparison.conftest import heddle, result, write_text_to_learn
from comparison.simulated import fill, only, tiny
from comparison.test_report import ROWS, law
from comparison.test_scale import LARGER, books, law_of, runs_of, simulated, with_larger

from heddle.comparison import load_comparison, scaling
from heddle.comparison.report import write_report, write_scaling_report
from heddle.comparison.scaling import Scaled
from heddle.comparison.scaling.prediction import Larger, larger_cell, write_grade, write_prediction

pytestmark = in_browser


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the report of a comparison with all sections."""
    folder = tmp_path_factory.mktemp("browser")
    write_text_to_learn(folder)
    suite = only(tiny("narang", folder / "text.txt", ("budget.steps", 40), ("arms", "tokens,rate")), *ROWS)
    fill(suite, folder / "out", law)
    path = write_report(load_comparison(suite, folder / "out"), "heddle compare narang")
    if KEPT in os.environ:
        shutil.copy(path, Path(os.environ[KEPT]) / "report.html")
    return path


@pytest.fixture(scope="module")
def scaling_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the report of a study of scaling whose losses are drawn from a law, with a prediction that was graded."""
    folder, grid, law = tmp_path_factory.mktemp("scale"), books(rule="fixed", **LARGER), law_of()
    results = simulated(grid)
    larger = [Larger(law, tuple(grid.runs(larger_cell(grid, law), scaling.LARGER, range(2), 1.0)))]
    unit = scaling.Unit.of(list(results.values()))
    prediction = write_prediction(folder, larger, results, unit, "heddle scale first")
    everything = with_larger(larger, results, 1.003)
    grade = write_grade(folder, prediction, everything, unit)
    runs = (*runs_of(grid), *larger[0].runs)
    found = Scaled(grid, folder, list(everything.values()), runs, 0, unit, (law,), prediction, grade)
    path = write_scaling_report(found, "heddle scale first")
    if KEPT in os.environ:
        shutil.copy(path, Path(os.environ[KEPT]) / "scaling.html")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Return a browser."""
    with chromium() as started:
        yield started


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("name", ["report", "scaling_report"])
def test_the_report_fits_the_screen_and_asks_for_nothing(
    browser: Any, name: str, size: dict[str, int], scheme: str, request: pytest.FixtureRequest
) -> None:
    report: Path = request.getfixturevalue(name)
    context = browser.new_context(viewport=size, color_scheme=scheme, offline=True)
    page, asked, said = context.new_page(), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.goto(report.as_uri())
    assert asked == [report.as_uri()] and said == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways"
    light = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert light == (scheme == "light")
    figures = list((report.parent / "figures").glob("*.svg")) or list(report.parent.glob("*.svg"))
    assert page.locator("svg").count() == len(figures) > 0
    unlike = page.evaluate(CONTRAST)
    assert not unlike, f"hard to read: {unlike}"
    assert page.evaluate(CUT_OFF) == []
    if KEPT in os.environ:
        kept = f"{name.replace('_', '-')}-{'phone' if size is PHONE else 'desktop'}-{scheme}.png"
        page.screenshot(path=str(Path(os.environ[KEPT]) / kept), full_page=True)
    context.close()


@with_axe
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["report", "scaling_report"])
def test_axe_finds_no_violation_of_wcag_aa(
    browser: Any, name: str, scheme: str, request: pytest.FixtureRequest
) -> None:
    page = browser.new_page(color_scheme=scheme)
    page.goto(request.getfixturevalue(name).as_uri())
    for size in (DESKTOP, PHONE):
        page.set_viewport_size(size)
        assert violations(page) == []
    page.close()


# Texts whose colour is less than 4.5 times as light or dark as the page.
CONTRAST = """() => {
  const light = rgb => { const [r, g, b] = rgb.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const page = light(getComputedStyle(document.body).backgroundColor);
  const low = new Set();
  for (const one of document.querySelectorAll("p, td, th, h1, h2, h3, li, svg text")) {
    const style = getComputedStyle(one), ink = light(one.closest("svg") ? style.fill : style.color);
    if ((Math.max(ink, page) + 0.05) / (Math.min(ink, page) + 0.05) < 4.5) low.add(one.textContent.slice(0, 40));
  }
  return [...low];
}"""
# Labels of figures that reach beyond the figure.
CUT_OFF = """() => [...document.querySelectorAll("svg text")].filter(one => {
  const box = one.getBBox(), frame = one.ownerSVGElement.viewBox.baseVal;
  return box.x < -1 || box.x + box.width > frame.width + 1 || box.y < -1 || box.y + box.height > frame.height + 1;
}).map(one => one.textContent)"""


def test_numbers_in_the_browser_are_those_of_the_results(browser: Any, report: Path) -> None:
    page = browser.new_page()
    page.goto(report.as_uri())
    rows = list(csv.DictReader((report.parent / "results.csv").read_text().splitlines()))
    for variant in ("elu", "geglu", "vanilla-transformer"):
        losses = [float(row["loss_test"]) for row in rows if row["variant"] == variant and row["arm"] == "tokens"]
        shown = page.locator(f"tr[data-variant='{variant}'] td").nth(2).inner_text()
        assert shown.startswith(f"{sum(losses) / len(losses):.4f} ±")
    page.locator("tr[data-variant='geglu'] summary").click()
    assert "gated_feed_forward(hidden=32" in page.locator("tr[data-variant='geglu'] details").inner_text()
    page.close()


SMALL = (
    "data=text.txt tokenizer.vocab=280 model.layers=1 model.width=16 model.heads=2 rows.length=32 training.batch=4 "
    "validation_rows=16 budget.steps=20 seeds=2 data.split.fraction=0.3"
)


@pytest.mark.full
def test_a_small_pocket_comparison_is_trained_and_its_numbers_read_back(browser: Any, tmp_path: Path) -> None:
    write_text_to_learn(tmp_path)
    result(heddle(tmp_path, "compare", "pocket", *SMALL.split(), "--no-controls", "--processes", "1"))
    folder = tmp_path / "comparisons" / "pocket"
    rows = list(csv.DictReader((folder / "results.csv").read_text().splitlines()))
    variants = ["base", "layer_norm", "alibi", "learned", "no_positions", "lstm"]
    assert sorted((row["variant"], row["seed"], row["status"]) for row in rows) == sorted(
        (name, seed, "done") for name in variants for seed in "01"
    )
    page = browser.new_page(viewport=PHONE)
    page.goto((folder / "report.html").as_uri())
    for name in variants:
        losses = [float(row["loss_test"]) for row in rows if row["variant"] == name]
        cells = page.locator(f"tr[data-variant='{name}'] td").all_inner_texts()
        assert cells[2].startswith(f"{statistics.mean(losses):.4f} ± {statistics.stdev(losses):.4f}"), cells
        parameters = float(next(row["params"] for row in rows if row["variant"] == name))
        assert float(cells[5].removesuffix(" k")) == pytest.approx(parameters / 1000, rel=0.01), cells
    assert page.locator("tr[data-variant='lstm'] td").nth(1).inner_text() in (
        "better",
        "worse",
        "equivalent",
        "undecided",
    )
    page.close()


def test_each_figure_opens_as_a_file(browser: Any, report: Path) -> None:
    page = browser.new_page(color_scheme="dark")
    for path in (report.parent / "figures").glob("*.svg"):
        page.goto(path.as_uri())
        assert page.evaluate("document.documentElement.tagName") == "svg", path
        assert page.evaluate("document.querySelectorAll('text').length") > 3, path
    page.close()
