"""Reports: what was found is said and drawn, in one file that needs no other, and each figure is a file too."""

import json
import math
import random
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from comparison.conftest import write_text_to_learn
from comparison.simulated import fill, only, tiny

from heddle.comparison import load_comparison, run_suite
from heddle.comparison.plan import CONTROL_LESS, PlannedRun, config_hash
from heddle.comparison.report import write_report
from heddle.comparison.suites import with_settings
from heddle.comparison.suites.narang import paper
from heddle.core import UsageError

EFFECTS = {"geglu": -0.02, "swish": 0.0, "elu": 0.03, "sigmoid": 0.02, CONTROL_LESS: 0.01}
ROWS = ("gelu", "swish", "elu", "geglu", "selu", "sigmoid", "softplus", "rezero", "24-layers")
COMMAND = "heddle compare narang 'data=<my> text' seeds=3"


def law(run: PlannedRun) -> float:
    """Return a loss: known effects, the luck of a seed, a little noise; one row diverges, one likes a lower rate."""
    noise = random.Random(f"{run.variant} {run.seed} {run.arm}").gauss(0, 0.002)
    if run.variant == "rezero" and run.seed == 1:
        return math.nan
    slow = {"rate x 0.5": 0.0, "rate x 1": 0.01, "rate x 2": 0.04}.get(run.arm, 0.0)
    return 3.0 * math.exp(EFFECTS.get(run.variant, 0.0) + 0.002 * (run.seed % 7) + noise) + slow


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a reported comparison with every section."""
    folder = tmp_path_factory.mktemp("reported")
    write_text_to_learn(folder)
    suite = only(tiny("narang", folder / "text.txt", ("budget.steps", 40), ("arms", "tokens,rate")), *ROWS)
    fill(suite, folder / "out", law)
    write_report(load_comparison(suite, folder / "out"), COMMAND)
    return folder / "out"


def words(folder: Path) -> str:
    """Return what the page says, without its tags."""
    page = (folder / "report.html").read_text()
    return re.sub(r"<[^>]+>", " ", page.split("</style>")[1]).replace("&#x27;", "'")


def test_the_verdict_names_what_is_better_worse_equal_and_failed(reported: Path) -> None:
    text = words(reported)
    assert re.search(r"Better than the base: +geglu\.", text)
    assert re.search(r"Worse than the base: +elu, sigmoid\.", text)
    assert re.search(r"Equivalent to the base within 0\.5%: .*swish", text)
    assert re.search(r"Failed in at least one run: +rezero\.", text)
    assert "The two controls came out right" in text
    assert "rezero, seed 1, tokens: diverged: the held-out loss is not a number" in text


def test_agreement_with_the_paper_is_stated_with_intervals_and_signs(reported: Path) -> None:
    text = words(reported)
    assert re.search(r"published final loss, all 10 rows: Spearman \S+ \[\S+, \S+\], *Kendall \S+ \[\S+, \S+\]", text)
    found = re.search(
        r"(\d+) of these rows are decided by the published early loss.*?; (\d+) of them have the same", text
    )
    assert found is not None and (int(found[1]), int(found[2])) == (6, 5), text
    assert "Not so: selu." in text


def test_every_figure_is_drawn_in_the_page_and_is_a_file_of_its_own(reported: Path) -> None:
    page = (reported / "report.html").read_text()
    names = {path.stem for path in (reported / "figures").glob("*.svg")}
    costs = {f"loss-by-{cost}" for cost in ("parameters", "flops", "seconds")}
    ranks = {"ranks-final-loss", "ranks-early-loss"}
    assert names == {"effects-tokens", "effects-rate", "curves", "rates", "power"} | costs | ranks
    assert page.count("<svg ") == len(names)
    for path in (reported / "figures").glob("*.svg"):
        root = ElementTree.fromstring(path.read_text())
        assert root.tag.endswith("svg") and "prefers-color-scheme" in path.read_text()
        assert "NaN" not in path.read_text() and ">nan" not in path.read_text()


def test_the_page_needs_nothing_from_elsewhere_and_has_the_exact_command(reported: Path) -> None:
    page = (reported / "report.html").read_text()
    assert not re.search(r"(src|href)=|url\(|@import|<script", page)
    assert "data=&lt;my&gt; text" in page and "<my>" not in page
    assert "GELU in the feed-forward" in page and "activation: &#x27;relu&#x27; -&gt; &#x27;gelu_tanh&#x27;" in page


def test_effects_in_the_page_are_those_of_the_law(reported: Path) -> None:
    page = (reported / "report.html").read_text()
    row = page.split("data-variant='elu'")[1].split("</tr>")[0]
    shown = re.search(r"([+-][\d.]+)%", row)
    assert shown is not None and float(shown[1]) == pytest.approx(3.0, abs=0.3)
    assert set(ROWS) <= set(paper()["final loss"])


def test_a_report_of_many_rows_has_the_arms_of_the_few_that_were_trained_so(tmp_path: Path) -> None:
    """A pilot timed three rows of six; the arms `rate` and `time` are theirs, and are judged against the same base."""
    write_text_to_learn(tmp_path)
    few, rows = ("elu", "geglu"), ("gelu", "swish", "elu", "geglu", "sigmoid")
    every = [("budget.steps", 40), ("arms", "tokens,rate,time")]
    all_rows = tiny("narang", tmp_path / "text.txt", every[0])
    plan = fill(only(all_rows, *rows), tmp_path / "out", law)
    paces = {"vanilla-transformer": 0.01, "elu": 0.02, "geglu": 0.005}
    steps = {config_hash(plan.configs()[name]): {"seconds": pace, "reason": ""} for name, pace in paces.items()}
    (tmp_path / "out" / "pilot.json").write_text(json.dumps({"steps": steps}))
    suite = tiny("narang", tmp_path / "text.txt", *every)
    fill(only(suite, *few), tmp_path / "out", law)
    found = load_comparison(only(suite, *rows, "softplus"), tmp_path / "out")
    judged = {arm: {one.variant for one in one_arm.comparisons} for arm, one_arm in found.arms.items()}
    assert set(rows) < judged["tokens"] and judged["rate"] == judged["time"] == set(few)
    assert {run.variant for run in found.runs if run.arm == "time"} == set(few)
    page = write_report(found, COMMAND).read_text()
    assert "data-variant='sigmoid'" in page and "NaN" not in page
    assert "<b>Not measured yet:</b> softplus.</p>" in page and "Provisional" not in page
    assert "<th>tokens/s</th>" in page, "the pilot timed some"
    fewer = load_comparison(only(with_settings(suite, [("seeds", 4), ("arms", "tokens")]), *rows), tmp_path / "out")
    words = write_report(fewer, COMMAND).read_text()
    assert "with fewer than 4 seeds:</b> vanilla-transformer (3), " in words and "Not measured" not in words
    with pytest.raises(UsageError, match="gelu: its speed is not known yet"):
        run_suite(only(suite, *rows), tmp_path / "out")
