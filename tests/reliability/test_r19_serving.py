"""R15, R17, R19, R21 (serving): hostile requests to `heddle serve`: templates, paths, bodies, bytes, secrets."""

import itertools
import json
import random
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from reliability.serving_rows import GOOD, OVERSIZED, check_broken_http, check_oversized, timed
from reliability.test_r15_templates import ESCAPES, GROWTH
from serving.server import KEY, Running, save_models, serving
from serving.test_http import CANARY, KNOWN, ROUTES, TASKS, check_fuzzed, is_error
from serving.wire import exchange, post

import heddle
from heddle.lm import LM, Origin

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
SECRET = "root-canary-90213"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a server of the small models beside a secret file, and of one whose own templates are hostile."""
    for package in ("fastapi", "uvicorn", "prometheus_client"):
        pytest.importorskip(package, reason="the extra `serve` is not installed")
    place = tmp_path_factory.mktemp("hostile")
    folders = save_models(place / "models")
    (place / "secret").write_text(SECRET)
    gpt = heddle.load(folders["gpt"], device="cpu")
    for number, template in enumerate((GROWTH[0], GROWTH[3], GROWTH[17])):
        folders[f"evil{number}"] = LM(gpt.model, gpt.tokenizer, Origin(template=template)).save(place / f"evil{number}")
    with serving(folders, place / "log", "--slots", "8") as running:
        yield running


# --- R15: templates ---------------------------------------------------------------------------------------------------


def check_request_templates(server: Running, templates: list[str]) -> int:
    """Send templates in every field that might take one; return how many requests were refused."""
    refused = 0
    for template in templates:
        for change in ({"chat_template": template}, {"chat_template_kwargs": {"x": template}}, {"tools": template}):
            status, found = post(server, "/v1/chat/completions", {"model": "gpt"} | CHAT | change)
            assert status == 400 and found["error"]["param"] == next(iter(change)), (change, found)
            refused += 1
        body = {"model": "gpt", "texts": ["a"], "examples": [["b", "x"], ["c", "y"]], "template": template}
        status, found = post(server, "/v1/heddle/classify", body)  # its template has places for fields, no code
        assert status in (200, 400) and "<class" not in json.dumps(found) and len(json.dumps(found)) < 300_000
    return refused


def check_models_templates(server: Running, count: int) -> dict[str, float]:
    """Ask models whose templates never end; each answer is a refusal, and other requests go on."""
    alone = statistics.quantiles([timed(server) for _ in range(60)], n=20)[-1]
    slowest, stop, beside = 0.0, threading.Event(), list[float]()

    def good() -> None:
        while not stop.is_set():
            beside.append(timed(server))

    thread = threading.Thread(target=good)
    thread.start()
    for number in range(count):
        begun = time.monotonic()
        status, _, body = exchange(
            server, "POST", "/v1/chat/completions", json.dumps(CHAT | {"model": f"evil{number % 3}"}).encode()
        )
        slowest = max(slowest, time.monotonic() - begun)
        assert status == 400 and is_error(body), (status, body[:200])
    stop.set()
    thread.join()
    return {"p95": statistics.quantiles(beside, n=20)[-1], "p95_alone": alone, "slowest": slowest, "good": len(beside)}


def test_template_in_a_request_is_refused(server: Running) -> None:
    assert check_request_templates(server, [ESCAPES[0], GROWTH[3]]) == 6


def test_models_hostile_template_is_refused_and_stops_nobody(server: Running) -> None:
    found = check_models_templates(server, 3)
    assert found["good"] > 0 and found["slowest"] < 5, found


@pytest.mark.full
def test_r15_templates_over_http(server: Running) -> None:
    templates = [*ESCAPES, *GROWTH][:60]
    refused, found = check_request_templates(server, templates), check_models_templates(server, 30)
    print(
        f"R15 (serving): {len(templates)} templates, {refused} requests with one refused; beside models that have one, "
        f"p95 of others {1e3 * found['p95']:.0f} ms (alone {1e3 * found['p95_alone']:.0f}), "
        f"slowest refusal {found['slowest']:.2f} s"
    )
    assert refused == 180 and found["slowest"] < 5


# --- R17: paths -------------------------------------------------------------------------------------------------------

STEPS = ("..", "%2e%2e", "%2E%2E", "..%2f", "%2e%2e%2f", "..\\", "%5c..", "....//", ".%2e", "..%00", "%c0%ae%c0%ae")
TARGETS = ("secret", "etc/passwd", "proc/self/environ", "config.json", "model.safetensors")
ABSOLUTE = ("/etc/passwd", "%2fetc%2fpasswd", "file:///etc/passwd")
PLACES = ("/static/", "/v1/models/", "/", "/v1/", "/static/main.js/", "/health/", "/%2f")


def attacks() -> list[str]:
    """Return paths that lead outside."""
    drawn = itertools.product(PLACES, STEPS, TARGETS, (1, 6))
    found = [f"{place}{'/'.join([step] * depth)}/{target}" for place, step, target, depth in drawn]
    return found + [f"{place}/{target}" for place in PLACES for target in ABSOLUTE]


def check_paths(server: Running, count: int) -> int:
    """Ask for paths, and for models by the name of a path; return how many were tried."""
    tried, home = 0, server.log.parent
    paths = attacks()
    random.Random(17).shuffle(paths)
    for path in paths[:count]:
        status, _, body = exchange(server, "GET", path)
        assert status in (400, 403, 404, 405) and SECRET.encode() not in body and b"root:" not in body, (path, status)
        tried += 1
    names = [f"{home}/secret", f"{home}/models/gpt", "../secret", *ABSOLUTE, "package:heddle", "gpt/../gpt"]
    for route in (path for method, path in ROUTES if method == "POST" and path in KNOWN):
        for name in names:
            fields = {"texts": ["a"], "input": "a", "prompt": "a", "tokens": [1], "questions": ["a"]} | CHAT
            for body in ({"model": name} | {key: value} for key, value in fields.items()):
                status, found = post(server, route, body)
                assert status in (400, 404) and SECRET not in json.dumps(found), (route, body, status)
                tried += 1
    return tried


def test_paths_lead_nowhere_outside(server: Running) -> None:
    assert check_paths(server, 40) > 200


@pytest.mark.full
def test_r17_paths_over_http(server: Running) -> None:
    print(f"R17 (serving): 0 of {check_paths(server, 10_000):,} paths and names led outside")


# --- R19, R21 ---------------------------------------------------------------------------------------------------------


def test_damaged_requests_are_refused_or_dropped(server: Running) -> None:
    assert check_broken_http(server, 40, 1)["answered"] > 10


def test_numbers_and_texts_beyond_the_limits_are_refused(server: Running) -> None:
    assert check_oversized(server)["slowest_seconds"] < 2


def check_secrets(server: Running, count: int) -> int:
    """Put secrets into keys, headers, prompts and paths of requests that fail and that do not; look for them."""
    draw, answers = random.Random(21), b""
    for number in range(count):
        canary = f"{CANARY}-{number}"
        body = json.dumps(GOOD | {"prompt": canary, "echo": False} | ({} if number % 3 else {"wrong": 1})).encode()
        headers = {"X-Secret": canary, "Cookie": canary, "Referer": f"http://localhost/{canary}"}
        key = draw.choice([KEY, canary, f"{KEY}x"])
        path = draw.choice(["/v1/completions", f"/{canary}", f"/v1/completions?key={canary}"])
        status, sent, found = exchange(server, "POST", path, body, headers, key)
        answers += json.dumps(sent).encode() + (b"" if status == 200 else found)
    _, _, metrics = exchange(server, "GET", "/metrics")
    seen = server.log.read_bytes() + metrics + answers
    assert KEY.encode() not in seen
    return seen.count(CANARY.encode())


def test_secrets_are_in_no_log_metric_or_error(server: Running) -> None:
    assert check_secrets(server, 30) == 0


@pytest.mark.full
def test_r19_and_r21_over_http(server: Running) -> None:
    statuses, broken, oversized = (
        check_fuzzed(server, 2000, 19),
        check_broken_http(server, 500, 19),
        check_oversized(server),
    )
    print(f"R19: {sum(statuses.values()):,} bodies ({statuses}), {broken}, {oversized}: no 5xx")
    print(f"R21 (serving): {check_secrets(server, 200)} of 200 secrets seen in logs, metrics and errors")
    assert check_secrets(server, 200) == 0 and len(OVERSIZED) >= 28 and TASKS
    assert Path(f"/proc/{server.process.pid}").exists()
