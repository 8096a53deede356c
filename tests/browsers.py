"""A real browser for tests of pages: Debian's Chromium by playwright, and axe-core, which checks WCAG rules.

`make browser` installs all of it. Without it, tests that need it are skipped with a line that says what is missing.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
AXE = Path(__file__).parents[1] / ".browser" / "package" / "axe.min.js"  # fetched by `make browser`, never committed
KEPT = "HEDDLE_SCREENSHOTS"  # a folder for screenshots
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
LEVELS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
in_browser = pytest.mark.skipif(
    CHROMIUM is None or find_spec("playwright") is None,
    reason="no Chromium or no playwright here; make browser installs both and runs this test",
)
with_axe = pytest.mark.skipif(not AXE.is_file(), reason="no axe-core here; make browser fetches it and runs this test")


@contextmanager
def chromium() -> Iterator[Any]:
    """Run Chromium until the block ends."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as drivers:
        started = drivers.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


def violations(page: Any, levels: Sequence[str] = LEVELS) -> list[str]:
    """Return what axe finds against WCAG 2.2 AA in the page as it stands, a line for each element."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("levels => axe.run(document, { runOnly: levels })", list(levels))
    assert len(found["passes"]) > 5, "axe did not look"
    return [
        f"{rule['id']} {node['target']}: {node['failureSummary']}"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]


class Stopwatch:
    """Measures the CPU time that the page's main thread spends on tasks while a block runs; painting is included.

    CPU time, not the clock's: a frame that another process delays is not the page's.
    """

    def __init__(self, page: Any) -> None:
        self.session, self.seconds = page.context.new_cdp_session(page), 0.0
        self.session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def __enter__(self) -> "Stopwatch":
        self.seconds = -self._tasks()
        return self

    def __exit__(self, *fault: object) -> None:
        self.seconds += self._tasks()
        self.session.detach()

    def _tasks(self) -> float:
        measured = self.session.send("Performance.getMetrics")["metrics"]
        return float(next(one["value"] for one in measured if one["name"] == "TaskDuration"))
