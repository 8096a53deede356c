"""The HTTP protocol beyond clients: errors, keys, limits, broken bodies, hang-ups, slow clients, a flood, a drain."""

import json
import random
import re
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from serving.server import KEY, Running, serving
from serving.wire import answer, connection, exchange, head, metric, post

from heddle.core import UsageError
from heddle.serving import Address

CANARY = "canary-prompt-77120"
GOOD = {"model": "gpt", "prompt": "hello", "max_tokens": 3, "temperature": 0}
LONG = {"model": "gpt", "prompt": CANARY, "max_tokens": 400, "temperature": 1, "logit_bias": {"256": -100}}
OPEN = {"/health", "/ready", "/", "/static/main.js"}
TASKS = ["classify", "tag", "answer", "fill", "embed", "rescore", "translate", "summarize"]
ROUTES = [
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/heddle/score"),
    *(("POST", f"/v1/heddle/{name}") for name in TASKS),
    ("POST", "/v1/heddle/explain"),
    ("POST", "/v1/heddle/attention"),
    ("POST", "/v1/heddle/logits"),
    ("POST", "/v1/heddle/divergence"),
    ("GET", "/v1/heddle/models"),
    ("POST", "/v1/responses"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/gpt"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/tokenizer_info"),
    ("GET", "/"),
    ("GET", "/static/main.js"),
    ("GET", "/health"),
    ("GET", "/ready"),
    ("GET", "/metrics"),
]


def is_error(body: bytes) -> bool:
    found = json.loads(body)["error"]
    return found.keys() == {"message", "type", "param", "code"} and "\n" not in found["message"]


def test_list_of_routes_is_that_of_the_app() -> None:
    app = pytest.importorskip("heddle.serving.http.app", reason="the extra `serve` is not installed")
    names = {"{id:path}": "gpt", "{name}": "main.js"}
    filled = {(method, re.sub(r"{.*}", lambda found: names[found[0]], path)) for method, path, _ in app.ROUTES}
    assert filled == set(ROUTES)


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_no_trick_passes_without_the_key(method: str, path: str, server: Running) -> None:
    host = {"Host": f"127.0.0.1:{server.port}"}
    tricks: list[tuple[str, str, dict[str, str]]] = [
        (method, path, {}),
        (method, path, {"Authorization": ""}),
        (method, path, {"Authorization": "Bearer"}),
        (method, path, {"Authorization": f"Bearer {KEY[:-1]}"}),
        (method, path, {"Authorization": f"Bearer {KEY}x"}),
        (method, path, {"Authorization": f"Bearer {KEY.upper()}"}),
        (method, path, {"Authorization": f"Basic {KEY}"}),
        (method, path, {"Authorization": KEY}),
        (method, path, {"X-Api-Key": KEY}),
        (method, path, {"Host": "evil.example"}),
        (method, path, {"Host": f"127.0.0.1:{server.port}/health"}),
        (method, path, {"X-Original-URL": "/health", "X-Forwarded-Host": "127.0.0.1"}),
        (method, "/" + path, {}),
        (method, path.replace("/", "/%2f", 1), {}),
        (method, f"/health/..{path}", {}),
        (method, f"{path}?key={KEY}", {}),
        ("OPTIONS", path, {}),
        ("OPTIONS", path, {"Origin": "https://evil.example"}),
        ("HEAD", path, {}),
    ]
    for verb, where, headers in tricks:
        status, _, body = exchange(server, verb, where, b"{}" if verb == "POST" else b"", host | headers, key=None)
        if where.partition("?")[0] in OPEN and verb in ("GET", "HEAD"):
            assert status in (200, 403, 405) or "Host" in headers
        else:
            assert status in (400, 401, 403, 404, 405), (verb, where, headers, status)
        assert status < 300 or verb == "HEAD" or is_error(body)


def test_other_hosts_and_origins_are_not_reflected(server: Running) -> None:
    assert exchange(server, "GET", "/v1/models", headers={"Host": "evil.example"})[0] == 403
    for origin, allowed in (("https://page.example", True), ("https://evil.example", False), ("null", False)):
        for method in ("GET", "OPTIONS"):
            _, headers, _ = exchange(server, method, "/v1/models", headers={"Origin": origin})
            assert (headers.get("access-control-allow-origin") == origin) is allowed
    assert exchange(server, "OPTIONS", "/v1/models", headers={"Origin": "https://page.example"}, key=None)[0] == 204


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "TRACE"])
def test_error_has_one_shape_on_every_route(method: str, server: Running) -> None:
    for verb, path in [
        *ROUTES,
        ("GET", "/v1"),
        ("GET", "/nowhere"),
        ("GET", "/v1/models/../../etc/passwd"),
    ]:
        status, _, body = exchange(server, method, path)
        if verb != method or path in ("/v1", "/nowhere"):
            assert status in (404, 405) and is_error(body), (method, path, status)


def test_responses_are_refused_by_name(server: Running) -> None:
    status, body = post(server, "/v1/responses", {"model": "gpt", "input": "a"})
    assert status == 404 and "use /v1/chat/completions" in body["error"]["message"]


def test_tokens_go_there_and_back(server: Running, lms: dict[str, Any]) -> None:
    text = "Grüße <|end|> 🙂"
    status, found = post(server, "/tokenize", {"model": "gpt", "prompt": text})
    assert status == 200 and found["tokens"] == lms["gpt"].tokenizer.encode_prompt(text)
    assert 256 not in found["tokens"][1:]  # text never becomes a control token
    plain = post(server, "/tokenize", {"prompt": text, "add_special_tokens": False})[1]["tokens"]
    assert post(server, "/detokenize", {"tokens": plain})[1] == {"prompt": text}
    chat = post(server, "/tokenize", {"messages": [{"role": "user", "content": "<|end|>"}]})[1]["tokens"]
    assert 256 not in chat
    status, _, info = exchange(server, "GET", "/tokenizer_info")
    assert json.loads(info)["eos_token"] == "<|end|>"


def test_name_of_a_special_token_alone_has_its_id_where_no_special_tokens_are_added(server: Running) -> None:
    alone = {"prompt": "<|end|>", "add_special_tokens": False}  # as lm-eval asks for the token that begins a text
    assert post(server, "/tokenize", alone)[1]["tokens"] == [256]
    for more in (alone | {"prompt": "a<|end|>"}, alone | {"prompt": "<|end|>\n"}, {"prompt": "<|end|>"}):
        assert 256 not in post(server, "/tokenize", more)[1]["tokens"][1:]


def test_scores_are_the_librarys_own(server: Running, lms: dict[str, Any]) -> None:
    found = post(server, "/v1/heddle/score", {"model": "lstm", "texts": ["ab", "hello"]})[1]["data"]
    wanted = [one.logprob for one in lms["lstm"].score(["ab", "hello"])]
    assert [one["logprob"] for one in found] == pytest.approx(wanted, abs=1e-4)
    paired = post(server, "/v1/heddle/score", {"model": "pair", "texts": ["ab"], "sources": ["xy"]})[1]["data"]
    assert paired[0]["logprob"] == pytest.approx(lms["pair"].score(["ab"], source=["xy"])[0].logprob, abs=1e-4)


def test_unservable_wishes_are_refused_by_name(server: Running) -> None:
    chat = {"model": "gpt", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
    wishes: list[tuple[str, dict[str, Any], str]] = [
        ("/v1/chat/completions", {"chat_template": "{{ x }}"}, "chat_template"),
        ("/v1/chat/completions", {"chat_template_kwargs": {}}, "chat_template_kwargs"),
        ("/v1/chat/completions", {"model": "pair"}, "model"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ("/v1/chat/completions", {"messages": [{"content": "a"}]}, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": "assistant", "content": "a", "tool_calls": 5}]}, "messages"),
        ("/v1/chat/completions", {"top_logprobs": 2}, "top_logprobs"),
        ("/v1/chat/completions", {"repetition_penalty": 5e-324}, "repetition_penalty"),  # zero in float32
        ("/v1/chat/completions", {"tools": [{"type": "other"}]}, "tools"),
        ("/v1/chat/completions", {"tool_choice": "required"}, "tool_choice"),
        ("/v1/chat/completions", {"max_tokens": 9999}, "prompt"),
    ]
    for path, change, param in wishes:
        status, found = post(server, path, chat | change)
        assert (status, found["error"]["param"]) == (400, param), found


# --- R19: bodies and bytes that are wrong -----------------------------------------------------------------------------

VALUES: list[Any] = [None, True, -1, 0, 1, 3.5, 1e308, 10**30, "", "a", "\x00", "é🙂", [], [[]], {}, {"a": 1}, [1, "a"]]
FIELDS = ["model", "prompt", "max_tokens", "n", "temperature", "top_p", "stop", "seed", "logprobs", "echo", "stream"]
FIELDS += ["logit_bias", "stream_options", "messages", "tools", "tool_choice", "response_format", "input", "texts"]
FIELDS += ["pairs", "labels", "examples", "k", "template", "lists", "questions", "contexts", "top", "beams"]
KNOWN = {
    "/v1/completions": {"model", "max_tokens", "prompt"},
    "/v1/chat/completions": {"model", "messages", "max_tokens"},
    "/v1/embeddings": {"model", "input"},
    "/v1/heddle/score": {"model", "texts"},
    **{f"/v1/heddle/{name}": {"model", "texts", "questions", "lists"} for name in TASKS},
    "/v1/responses": {"model", "input"},
    "/tokenize": {"model", "prompt"},
    "/detokenize": {"model", "tokens"},
}
WRONG = [b'"\\ud800"', b"NaN", b"\xff", b"-Infinity", b"9" * 6000, b'"' + b"x" * 9000 + b'"']
NO_OBJECTS = [b"[" * 100_000, b'{"a":' * 50_000, b"", b"null", b"[]", b'"a"', b"\x00"]


def fuzzed(draw: random.Random) -> tuple[str, bytes]:
    """Draw a route and a body that is nearly right, or not at all."""
    path = draw.choice(list(KNOWN))
    body: dict[str, Any] = {
        "model": "gpt",
        "max_tokens": 2,
        "prompt": "a",
        "input": "a",
        "texts": "a",
        "tokens": [1],
        "questions": "a",
    }
    body["messages"] = [{"role": "user", "content": "a"}]
    body["lists"] = [{"candidates": ["a", "b"]}]
    body = {name: value for name, value in body.items() if name in KNOWN[path]}
    if path.removeprefix("/v1/heddle/") in TASKS:
        own = {"answer": {"texts", "lists"}, "rescore": {"texts", "questions"}}
        left_out = own.get(path.removeprefix("/v1/heddle/"), {"questions", "lists"})
        body = {name: value for name, value in body.items() if name not in left_out}
        if path.endswith(("translate", "summarize")):
            body["max_tokens"] = 2  # of a source of 9,000 characters too
        body["model"] = draw.choice(["gpt", "pair", "reader"])
    for _ in range(draw.randrange(3)):
        body[draw.choice(FIELDS)] = draw.choice(VALUES)
    raw = json.dumps(body).encode()
    match draw.randrange(10):
        case 0:
            raw = raw[: draw.randrange(len(raw))]
        case 1:
            raw = raw.replace(b'"a"', draw.choice(WRONG))
        case 2:
            raw = draw.choice(NO_OBJECTS)
    return path, raw


def check_fuzzed(server: Running, count: int, seed: int) -> dict[str, int]:
    draw, statuses = random.Random(seed), dict[str, int]()
    pid = server.process.pid
    for number in range(count):
        path, raw = fuzzed(draw)
        begun = time.monotonic()
        status, _, body = exchange(server, "POST", path, raw)
        assert 200 <= status < 500, (path, raw[:200], status, body[:200])
        statuses[str(status)] = statuses.get(str(status), 0) + 1
        long = status == 200 and len(raw) > 9000  # a model may work on a long text for a while
        assert time.monotonic() - begun < (20 if long else 5), (path, raw[:200])
        assert b"Traceback" not in body and b"/src/" not in body
        if number % 50 == 0:
            assert post(server, "/v1/completions", GOOD)[0] == 200
    assert server.process.poll() is None and server.process.pid == pid
    return statuses


def test_fuzzed_bodies_are_answered_or_refused(server: Running) -> None:
    check_fuzzed(server, 150, 1)


@pytest.mark.full
def test_fuzzed_bodies_are_answered_or_refused_at_length(server: Running) -> None:
    check_fuzzed(server, 2000, 2)


LOCAL = b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
BROKEN = [
    b"GET / HTTP/9.9\r\n\r\n",
    b"\x00\x01\x02\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET /health" + LOCAL + b"Host: b\r\n\r\n",
    b"POST /tokenize" + LOCAL + b"Content-Length: -5\r\n\r\n",
    b"POST /tokenize" + LOCAL + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"GET /health" + LOCAL + b"X: " + b"a" * 70_000 + b"\r\n\r\n",
    b"GET /\xff\xfe" + LOCAL + b"\r\n",
]


def test_broken_http_is_refused_in_the_same_shape(server: Running) -> None:
    for raw in BROKEN:
        with connection(server) as wire:
            wire.sendall(raw)
            status, headers, body = answer(wire)
        assert status in (0, 200, 400, 401, 403, 404, 431), (raw[:60], status)
        if status == 400 and body:
            assert headers["content-type"] == "application/json" and is_error(body)
    assert post(server, "/v1/completions", GOOD)[0] == 200


def test_limits_are_answered_before_the_text_is_read(server: Running) -> None:
    cases: list[tuple[bytes, int]] = [
        (json.dumps(GOOD | {"prompt": "x" * 1_500_000}).encode(), 400),
        (json.dumps(GOOD | {"prompt": "x" * 2_200_000}).encode(), 413),
        (json.dumps(GOOD | {"n": 10**12}).encode(), 400),
        (json.dumps(GOOD | {"max_tokens": 10**18}).encode(), 400),
        (json.dumps(GOOD | {"prompt": ["a"] * 10_000}).encode(), 400),
        (json.dumps(GOOD | {"stop": ["a"] * 1000}).encode(), 400),
    ]
    for raw, wanted in cases:
        status, _, body = exchange(server, "POST", "/v1/completions", raw)
        assert (status, is_error(body)) == (wanted, True)
    with connection(server) as wire:  # refused by its length, before the body has come
        headers = {"Host": "localhost", "Authorization": f"Bearer {KEY}", "Content-Length": str(10**9)}
        wire.sendall(head("POST", "/v1/completions", headers | {"Connection": "close"}))
        assert answer(wire)[0] == 413


# --- R23, R24: clients who leave, and too many of them ----------------------------------------------------------------


def wait_until_idle(server: Running, seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    places = ("waiting", "reading", "active", "searching")
    while time.monotonic() < end:
        if not any(metric(server, f"heddle_load_{place}", "gpt") for place in places):
            return True
        time.sleep(0.05)
    return False


def hang_up(server: Running, count: int, seed: int) -> None:
    """Leave at random moments, streaming and not; the prompt of each is its own."""
    draw = random.Random(seed)
    for number in range(count):
        body = json.dumps(LONG | {"stream": bool(number % 2), "prompt": f"{CANARY}-{number}"}).encode()
        headers = {"Host": "localhost", "Authorization": f"Bearer {KEY}", "Content-Length": str(len(body))}
        with connection(server) as wire:
            wire.sendall(head("POST", "/v1/completions", headers) + body)
            time.sleep(draw.random() * 0.04)


def descriptors(server: Running) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def test_clients_who_hang_up_leave_nothing_behind(server: Running) -> None:
    wanted = post(server, "/v1/completions", GOOD)[1]["choices"][0]["text"]
    assert wait_until_idle(server)
    before, cancelled = descriptors(server), metric(server, "heddle_cancelled_total", "gpt")
    hang_up(server, 60, 3)
    assert wait_until_idle(server)
    assert post(server, "/v1/completions", GOOD)[1]["choices"][0]["text"] == wanted
    assert descriptors(server) <= before + 1
    assert metric(server, "heddle_cancelled_total", "gpt") > cancelled + 20


@pytest.mark.full
def test_three_hundred_clients_who_hang_up_leave_nothing_behind(server: Running) -> None:
    hang_up(server, 300, 4)
    assert wait_until_idle(server)


def test_flood_is_answered_or_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
    body = GOOD | {"max_tokens": 40, "logit_bias": {"256": -100}}
    with serving(
        {"gpt": folders["gpt"]}, tmp_path / "log", "--slots", "4", "--waiting", "8", "--waiting-per-client", "8"
    ) as small:
        (wanted,) = {post(small, "/v1/completions", body)[1]["choices"][0]["text"] for _ in range(2)}
        found: list[tuple[int, dict[str, str], bytes]] = []

        def one() -> None:
            found.append(exchange(small, "POST", "/v1/completions", json.dumps(body).encode()))

        threads = [threading.Thread(target=one) for _ in range(60)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(found) == 60 and {status for status, _, _ in found} == {200, 429}
        for status, headers, raw in found:
            if status == 200:
                assert json.loads(raw)["choices"][0]["text"] == wanted
            else:
                assert headers["retry-after"] == "1" and is_error(raw)


# --- R20, R25: slow clients, and the end ------------------------------------------------------------------------------


def test_sender_who_dribbles_and_reader_who_takes_nothing_are_cut_off(server: Running) -> None:
    begun, before = time.monotonic(), descriptors(server)
    with connection(server, 30) as wire, connection(server, 30) as other, connection(server, 30) as reader:
        reader.sendall(head("GET", "/static/main.js", {"Host": "localhost"}) * 600)  # more than its socket takes
        wire.sendall(b"GET /health HTT")  # headers that never end
        body = b'{"model": "gpt", '
        headers = {"Host": "localhost", "Authorization": f"Bearer {KEY}", "Content-Length": "500"}
        other.sendall(
            head("POST", "/v1/completions", headers | {"Connection": "close"}) + body
        )  # a body that never ends
        assert post(server, "/v1/completions", GOOD)[0] == 200
        assert answer(wire)[0] == 0
        assert answer(other)[0] == 408
        assert 8 < time.monotonic() - begun < 20
        while descriptors(server) > before + 1 and time.monotonic() < begun + 30:
            time.sleep(0.1)
        assert descriptors(server) <= before + 1  # the reader's connection too, though it is open at its own end


def test_accepted_requests_finish_when_the_server_ends(folders: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
    with serving({"gpt": folders["gpt"]}, tmp_path / "log", key=None) as ending:
        found: list[bytes] = []
        body = json.dumps(LONG | {"stream": True, "max_tokens": 300}).encode()
        headers = {"Host": "localhost", "Content-Length": str(len(body)), "Connection": "close"}

        def stream() -> None:
            with connection(ending) as wire:
                wire.sendall(head("POST", "/v1/completions", headers) + body)
                found.append(answer(wire)[2])

        threads = [threading.Thread(target=stream) for _ in range(4)]
        for thread in threads:
            thread.start()
        end = time.monotonic() + 20
        while metric_or_zero(ending) < 4 and time.monotonic() < end:
            time.sleep(0.01)
        ending.process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join(30)
        assert ending.process.wait(20) == 0
        assert len(found) == 4 and all(b"data: [DONE]" in one and b'"finish_reason":"length"' in one for one in found)
        with pytest.raises(OSError), connection(ending, 2):
            pass


def test_models_share_the_seconds_to_drain() -> None:
    served_model = pytest.importorskip("heddle.serving.http.served_model", reason="the extra `serve` is not installed")
    given: list[float] = []

    class Slow:
        """A model that takes all the time it gets."""

        def __init__(self, name: str) -> None:
            self.source = SimpleNamespace(name=name)

        def close(self, drain: float) -> None:
            given.append(drain)
            time.sleep(drain)

    served_model.ServedModels([Slow("a"), Slow("b")]).close(0.2)
    assert given[0] == pytest.approx(0.2, abs=0.05) and given[1] < 0.1


def metric_or_zero(server: Running) -> float:
    return metric(server, "heddle_load_active", "gpt")


def test_public_address_without_a_key_is_refused() -> None:
    with pytest.raises(UsageError, match=r"host: 0\.0\.0\.0 can be reached by others"):
        Address(host="0.0.0.0")
    with pytest.raises(UsageError, match="cors-origin: want origins"):
        Address(origins=("*",))
    assert Address(host="0.0.0.0", keys=("k",)).known_hosts == ()
    for key in ("", " ", "a b", "ключ"):
        with pytest.raises(UsageError, match="api-key: want ASCII characters without spaces"):
            Address(host="0.0.0.0", keys=(key,))
    assert Address().host == "127.0.0.1"


def test_port_that_is_taken_is_refused_in_one_line() -> None:
    with Address(port=0).bind() as bound:
        bound.listen()
        port = bound.getsockname()[1]
        with pytest.raises(UsageError, match=f"port: cannot listen on 127.0.0.1:{port}: Address already in use"):
            Address(port=port).bind()


def test_logs_and_metrics_have_no_secrets(server: Running) -> None:
    post(server, "/v1/completions", LONG | {"max_tokens": 3})
    exchange(server, "GET", f"/{CANARY}?{CANARY}")
    exchange(server, "GET", "/v1/models", headers={"X-Secret": CANARY}, key=f"{CANARY}-wrong")
    _, _, text = exchange(server, "GET", "/metrics")
    logged = server.log.read_text()
    assert CANARY not in logged + text.decode() and KEY not in logged + text.decode()
    assert re.search(r'"route": "/v1/completions", "status": 200', logged)
