"""Schemathesis: requests drawn from the schema of every route, that fit it and that do not (R19)."""

import time
from collections import Counter
from importlib.util import find_spec
from typing import Any

import pytest
from serving.openapi import described
from serving.server import KEY, Running
from serving.test_http import ROUTES, TASKS

MISSING = "schemathesis is not installed; make fuzz installs it and runs this"
needs_schemathesis = pytest.mark.skipif(find_spec("schemathesis") is None, reason=MISSING)


def check_drawn(server: Running, count: int, seed: int) -> dict[str, Any]:
    """Draw requests to every route; none is a 5xx, slow, or told with a traceback."""
    import hypothesis
    import requests
    import schemathesis
    from schemathesis import GenerationMode

    schema = schemathesis.openapi.from_dict(described())
    operations = [one.ok() for one in schema.get_all_operations()]
    modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    each = -(-count // (len(operations) * len(modes)))
    statuses, slowest, session = Counter[int](), (0.0, ""), requests.Session()
    for number, operation in enumerate(operations):
        for mode in modes:

            @hypothesis.seed(seed + number)
            @hypothesis.settings(
                max_examples=each,
                database=None,
                deadline=None,
                phases=[hypothesis.Phase.generate],
                suppress_health_check=list(hypothesis.HealthCheck),
            )
            @hypothesis.given(case=operation.as_strategy(mode))
            def send(case: Any) -> None:
                nonlocal slowest
                begun = time.monotonic()
                headers = {"Authorization": f"Bearer {KEY}"}
                answer = case.call(base_url=server.url, session=session, headers=headers, timeout=60)
                asked = case.body.get("max_tokens") if isinstance(case.body, dict) else None
                if not isinstance(asked, int) or asked <= 512:  # who wants thousands of tokens waits for them
                    slowest = max(slowest, (time.monotonic() - begun, f"{case.path} {case.body}"[:500]))
                statuses[answer.status_code] += 1
                assert answer.status_code < 500, (answer.status_code, case.path, case.body)
                assert b"Traceback" not in answer.content and b"/src/" not in answer.content, answer.content

            send()
    assert server.process.poll() is None and slowest[0] < 20, slowest
    found = {str(status): times for status, times in sorted(statuses.items())}
    return {"requests": sum(statuses.values()), "statuses": found, "slowest_seconds": round(slowest[0], 2)}


def test_every_route_with_a_body_is_described() -> None:
    pytest.importorskip("pydantic", reason="the extra `serve` is not installed")
    posts = {path for method, path in ROUTES if method == "POST"} - {"/v1/responses"}
    assert set(described()["paths"]) == posts and len(posts) > len(TASKS)


@needs_schemathesis
@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(300)
def test_drawn_requests_are_answered_or_refused(server: Running) -> None:
    found = check_drawn(server, 340, 1)
    assert found["requests"] >= 300 and found["statuses"].get("200", 0) > 10, found


@pytest.mark.full
@needs_schemathesis
@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(1800)
def test_r19_two_thousand_drawn_requests_are_answered_or_refused(server: Running) -> None:
    found = check_drawn(server, 2000, 19)
    print(f"R19 (schemathesis): {found}")
    assert found["requests"] >= 1900
