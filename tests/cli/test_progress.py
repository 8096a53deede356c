"""Progress is shown where somebody watches, and nowhere else."""

import io
import re

import pytest
from rich.console import Console

from heddle.cli import progress


@pytest.mark.parametrize("watched", [True, False])
def test_documents_and_bytes_are_counted_where_somebody_watches(watched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "OFTEN", 0.0)
    screen = io.StringIO()
    with progress.counted("prepare", Console(file=screen, force_terminal=watched, width=100)) as passed:
        passed(1, 1000)
        passed(2500, 3_000_000)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    assert ("prepare 2,500 documents 3.0 MB" in plain) is watched
    assert watched or not plain


def test_nothing_is_shown_before_there_is_something_to_count() -> None:
    screen = io.StringIO()
    with progress.counted("prepare", Console(file=screen, force_terminal=True)):
        pass
    assert "prepare" not in screen.getvalue()
