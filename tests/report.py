"""Report of `make reliability`: one JSON line a test, with its row's number, its seconds and the commit."""

import json
import os
import subprocess
from pathlib import Path

import pytest

OPTION = "--report"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the file."""
    parser.addoption(OPTION, type=Path, help="append a JSON line for each test to this file")


def pytest_configure(config: pytest.Config) -> None:
    """Write where a file is named; of several processes only the first writes."""
    path = config.getoption(OPTION)
    if path is not None and "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(Report(path))


class Report:
    """Appends a line for each test that ran or failed."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()  # tests change the working directory
        described = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True)
        self.commit = described.stdout.strip()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Append the test's outcome, its seconds, and what it printed that begins with the name of a row."""
        if report.when != "call" and report.passed:
            return
        said = [line for line in report.capstdout.splitlines() if line[:1] == "R" and line[1:2].isdigit()]
        line = {"test": report.nodeid, "outcome": report.outcome, "numbers": said, "seconds": round(report.duration, 1)}
        with self.path.open("a") as file:
            file.write(json.dumps(line | {"commit": self.commit}) + "\n")
