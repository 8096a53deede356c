"""Serving rows (R15 to R26): what the tests run at the table's counts, and this file as a program at larger ones.

    python tests/reliability/serving_rows.py [--fuzzed 20000] [--drawn 20000] [--hang-ups 10000] [--minutes 10]

The server is `heddle serve` as a process with tiny models; what it holds is read from /proc.
"""

import argparse
import json
import random
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from serving.server import KEY, Running, save_models, serving
from serving.wire import answer, connection, exchange, head, metric, post

GOOD = {"model": "gpt", "prompt": "hello", "max_tokens": 8, "temperature": 0, "return_token_ids": True}
LONG = {"model": "gpt", "prompt": "x", "max_tokens": 400, "temperature": 1, "logit_bias": {"256": -100}}
PLACES = ("waiting", "reading", "active", "searching")


@dataclass(frozen=True)
class Footprint:
    """What a process holds."""

    descriptors: int
    threads: int
    children: int
    megabytes: float

    @classmethod
    def of(cls, server: Running) -> "Footprint":
        """Read it from /proc."""
        folder = Path(f"/proc/{server.process.pid}")
        status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        children = sum(len(one.read_text().split()) for one in folder.glob("task/*/children"))
        resident = int(status["VmRSS"].split()[0]) / 1024
        return cls(len(list((folder / "fd").iterdir())), int(status["Threads"]), children, resident)

    def grew(self, before: "Footprint") -> dict[str, float]:
        """Return what is more than before."""
        return {name: round(getattr(self, name) - getattr(before, name), 1) for name in self.__dataclass_fields__}


def wait_until_idle(server: Running, seconds: float) -> float:
    """Return after how many seconds no request of any model was left; infinity: after none."""
    begun = time.monotonic()
    while time.monotonic() < begun + seconds:
        _, _, text = exchange(server, "GET", "/metrics")
        loads = [line for line in text.decode().splitlines() if line.startswith("heddle_load_")]
        if loads and not any(float(line.split()[-1]) for line in loads if line.partition("{")[0][12:] in PLACES):
            return time.monotonic() - begun
        time.sleep(0.02)
    return float("inf")


@contextmanager
def tiny_server(*options: str, key: str | None = KEY) -> Iterator[Running]:
    """Run a server of the small models until the block ends."""
    with (
        tempfile.TemporaryDirectory() as place,
        serving(save_models(Path(place)), Path(place) / "log", *options, key=key) as running,
    ):
        yield running


# --- R19: requests that are wrong -------------------------------------------------------------------------------------


def broken_http(draw: random.Random) -> bytes:
    """Draw a request whose bytes are damaged."""
    body = json.dumps(GOOD).encode()
    headers = {"Host": "localhost", "Authorization": f"Bearer {KEY}", "Content-Length": str(len(body))}
    raw = bytearray(head("POST", draw.choice(["/v1/completions", "/tokenize", "/v1/models"]), headers) + body)
    for _ in range(draw.randint(1, 6)):
        at = draw.randrange(len(raw))
        match draw.randrange(4):
            case 0:
                raw[at] = draw.randrange(256)
            case 1:
                del raw[at : at + draw.randint(1, 20)]
            case 2:
                raw[at:at] = draw.randbytes(draw.randint(1, 20))
            case 3:
                raw[at:at] = raw[: draw.randint(1, 40)]
        raw = raw or bytearray(b"x")
    return bytes(raw)


def check_broken_http(server: Running, count: int, seed: int) -> dict[str, float]:
    """Send damaged requests; nothing is a 5xx, slow, or told with a traceback."""
    draw, slowest, answered = random.Random(seed), 0.0, 0
    for _ in range(count):
        raw, begun = broken_http(draw), time.monotonic()
        with connection(server) as wire:
            with suppress(OSError):
                wire.sendall(raw)
                wire.shutdown(socket.SHUT_WR)
            status, _, body = answer(wire)
        slowest = max(slowest, time.monotonic() - begun)
        answered += status != 0
        assert status < 500 and b"Traceback" not in body, (raw, status, body[:300])
    assert slowest < 5 and post(server, "/v1/completions", GOOD)[0] == 200
    return {"broken": count, "answered": answered, "slowest_seconds": round(slowest, 2)}


OVERSIZED: list[dict[str, Any]] = [
    {name: value}
    for name, values in {
        "n": (17, 10**6, 10**30),
        "best_of": (17, 10**9),
        "max_tokens": (10**9, 10**18, 10**30),
        "logprobs": (21, 10**9),
        "top_k": (10**12,),
        "min_tokens": (10**12,),
        "beams": (17, 10**6),
        "seed": (10**30,),
        "temperature": (101, 1e300),
        "repetition_penalty": (1e9,),
        "stop": (["a"] * 1000, "a" * 100_000),
        "logit_bias": ({str(n): 1 for n in range(2000)}, {"1000000000000": 1}),
        "prompt": ("x" * 1_500_000, [1] * 300_000, ["a"] * 10_000, [[1]] * 10_000, [10**30]),
        "response_format": ({"type": "json_schema", "json_schema": {"name": "a", "schema": {
            "type": "object", "properties": {f"k{n}": {"type": "string"} for n in range(5000)}}}},),
    }.items()
    for value in values
]  # fmt: skip


def check_oversized(server: Running) -> dict[str, float]:
    """Send numbers and texts that are too large; each is refused at once, by its name."""
    slowest = 0.0
    for change in OVERSIZED:
        begun = time.monotonic()
        status, _, body = exchange(server, "POST", "/v1/completions", json.dumps(GOOD | change).encode())
        slowest = max(slowest, time.monotonic() - begun)
        assert status in (400, 413), (list(change), status, body[:200])
    return {"oversized": len(OVERSIZED), "slowest_seconds": round(slowest, 3)}


# --- R20: slow clients ------------------------------------------------------------------------------------------------


def check_slow_clients(server: Running, dribblers: int, readers: int, seconds: float) -> dict[str, float]:
    """Dribble requests, and read no answers, beside eight good clients."""
    with _good_clients(server) as alone:
        time.sleep(seconds / 3)
    before = Footprint.of(server).descriptors
    slow = [_Slow(server) for _ in range(dribblers)]
    slow += [
        _Slow(server, reads=60 if number % 10 else 600) for number in range(readers)
    ]  # six megabytes fill a socket
    begun, held = time.monotonic(), list[tuple[float, int]]()
    with _good_clients(server) as beside:
        while time.monotonic() < begun + seconds:
            for one in slow:
                one.dribble()
            held.append((time.monotonic() - begun, Footprint.of(server).descriptors - before))
            time.sleep(0.5)
    left = Footprint.of(server).descriptors - before
    for one in slow:
        one.wire.close()
    return {
        "most_held": max(count for _, count in held),
        "dribblers_closed_after": round(max(one.closed or 1e9 for one in slow if one.sends), 1),
        "all_closed_after": round(next((at for at, count in reversed(held) if count > 8), 0), 1),  # but for good ones
        "held_at_the_end": left,
        "good_requests": len(beside),
        "p95_seconds": round(percentile(beside, 0.95), 4),
        "p95_alone_seconds": round(percentile(alone, 0.95), 4),
    }


@contextmanager
def _good_clients(server: Running) -> Iterator[list[float]]:
    """Keep eight clients asking; the seconds of each request are in the list when the block has ended."""
    stop, found = threading.Event(), list[float]()

    def ask() -> None:
        while not stop.is_set():
            found.append(timed(server))
            time.sleep(0.05)

    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(ask) for _ in range(8)]
        try:
            yield found
        finally:
            stop.set()
        for one in waiting:
            one.result()


class _Slow:
    """A client who sends a byte now and then, or asks for much and reads nothing."""

    def __init__(self, server: Running, reads: int = 0) -> None:
        self.sends, self.begun = not reads, time.monotonic()
        self.closed: float | None = None
        self.wire = socket.socket()
        self.wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        self.wire.connect(("127.0.0.1", server.port))
        self.wire.setblocking(False)
        if reads:
            self.wire.send(head("GET", "/static/main.js", {"Host": "localhost"}) * reads)

    def dribble(self) -> None:
        """Send a byte, and note if the server has closed."""
        if self.closed is not None:
            return
        try:
            if self.sends:
                self.wire.send(b"G")
        except BlockingIOError:
            pass
        except OSError:
            self.closed = time.monotonic() - self.begun


def timed(server: Running) -> float:
    """Return the seconds of a good request."""
    begun = time.monotonic()
    status, _, body = exchange(server, "POST", "/v1/completions", json.dumps(GOOD).encode())
    assert status == 200, body[:300]
    return time.monotonic() - begun


def percentile(values: list[float], share: float) -> float:
    """Return the value below which a share of values lies."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


# --- R22, R23, R24: many clients, those who leave, and too many -------------------------------------------------------


def drawn_request(draw: random.Random, number: int) -> dict[str, Any]:
    """Draw a request whose answer is the same whenever it is asked."""
    body: dict[str, Any] = {
        "model": draw.choice(["gpt", "lstm", "pair"]),
        "prompt": "abcdefgh"[: draw.randint(1, 8)] * draw.randint(1, 9),
    }
    body |= {
        "max_tokens": draw.randint(1, 40),
        "seed": number,
        "temperature": draw.choice([0, 0.7, 1.3]),
        "logprobs": 2,
    }
    return body | draw.choice(
        [{}, {"top_k": 5}, {"top_p": 0.8}, {"repetition_penalty": 1.2}, {"logit_bias": {"97": 3}}]
    )


def answer_of(server: Running, body: dict[str, Any], stream: bool = False) -> Any:
    """Return what a request is answered: text and log-probabilities, to the last digit."""
    if not stream:
        status, found = post(server, "/v1/completions", body)
        assert status == 200, (body, found)
        choice = found["choices"][0]
        return choice["text"], choice["logprobs"]["token_logprobs"], choice["finish_reason"]
    status, _, raw = exchange(server, "POST", "/v1/completions", json.dumps(body | {"stream": True}).encode())
    assert status == 200 and b"data: [DONE]" in raw, raw[-300:]
    lines = [json.loads(line[6:])["choices"][0] for line in raw.splitlines() if line.startswith(b"data: {")]
    logprobs = [one for line in lines if line["logprobs"] for one in line["logprobs"]["token_logprobs"]]
    return "".join(line["text"] for line in lines), logprobs, lines[-1]["finish_reason"]


def check_streams(server: Running, clients: int, seconds: float, seed: int) -> dict[str, int]:
    """Ask the same requests alone and in the company of many; count the answers that differ."""
    draw = random.Random(seed)
    bodies = [drawn_request(draw, number) for number in range(48)]
    alone = [answer_of(server, body) for body in bodies]
    end, counts = time.monotonic() + seconds, {"answers": 0, "other_tokens": 0, "other_bits": 0, "left": 0}

    def client(number: int) -> dict[str, int]:
        own, found = random.Random(seed * 1000 + number), dict.fromkeys(counts, 0)
        while time.monotonic() < end:
            which = own.randrange(len(bodies))
            if own.random() < 0.1:
                leave(server, LONG | {"stream": True}, own.random() * 0.1)
                found["left"] += 1
                continue
            text, logprobs, why = answer_of(server, bodies[which], stream=own.random() < 0.5)
            found["answers"] += 1
            found["other_tokens"] += (text, why) != (alone[which][0], alone[which][2])
            found["other_bits"] += logprobs != alone[which][1]
        return found

    with ThreadPoolExecutor(clients) as pool:
        for one in pool.map(client, range(clients)):
            counts = {name: value + one[name] for name, value in counts.items()}
    return counts


def leave(server: Running, body: dict[str, Any], seconds: float) -> None:
    """Ask, and hang up after some seconds."""
    raw = json.dumps(body).encode()
    headers = {"Host": "localhost", "Authorization": f"Bearer {KEY}", "Content-Length": str(len(raw))}
    with suppress(OSError), connection(server) as wire:
        wire.sendall(head("POST", "/v1/completions", headers) + raw)
        time.sleep(seconds)


def check_hang_ups(server: Running, count: int, seed: int) -> dict[str, Any]:
    """Leave at random moments, streaming and not; what the server holds afterwards is what it held before."""
    draw, wanted = random.Random(seed), post(server, "/v1/completions", GOOD)[1]["choices"][0]
    check = max(1, count // 10)
    for _ in range(60):  # so that all that is made once is there
        leave(server, LONG | {"stream": True}, 0.01)
    assert wait_until_idle(server, 5) < 5
    before, cancelled = Footprint.of(server), metric(server, "heddle_cancelled_total", "gpt")
    slowest, wrong = 0.0, 0
    for number in range(count):
        leave(server, LONG | {"stream": bool(number % 2), "prompt": f"canary-{number}"}, draw.random() * 0.02)
        if number % check == check - 1:
            slowest = max(slowest, wait_until_idle(server, 5))
            wrong += post(server, "/v1/completions", GOOD)[1]["choices"][0] != wanted
    time.sleep(1)
    grew = Footprint.of(server).grew(before)
    cancelled = metric(server, "heddle_cancelled_total", "gpt") - cancelled
    return {
        "hang_ups": count,
        "cancelled": int(cancelled),
        "idle_after": round(slowest, 2),
        "wrong": wrong,
        "grew": grew,
    }


def check_flood(server: Running, count: int, body: dict[str, Any]) -> dict[str, Any]:
    """Ask all at once; each is answered rightly or refused with Retry-After; seconds are those of the access log."""
    wanted, before = post(server, "/v1/completions", body)[1]["choices"][0]["text"], Footprint.of(server)
    skip = len(server.log.read_text().splitlines())
    raw, found = json.dumps(body).encode(), list[tuple[int, dict[str, str], bytes]]()
    with ThreadPoolExecutor(count) as pool:
        found += pool.map(lambda _: exchange(server, "POST", "/v1/completions", raw), range(count))
    lines = [json.loads(line) for line in server.log.read_text().splitlines()[skip:] if line.startswith("{")]
    refusals = [line["seconds"] for line in lines if line["status"] == 429]
    for status, headers, own in found:
        assert status in (200, 429), status
        assert json.loads(own)["choices"][0]["text"] == wanted if status == 200 else headers["retry-after"] == "1"
    assert wait_until_idle(server, 10) < 10
    statuses = [status for status, _, _ in found]
    refused_in = round(percentile(refusals, 0.99), 4) if refusals else None
    grew = Footprint.of(server).grew(before)
    return {"answered": statuses.count(200), "refused": statuses.count(429), "refused_in_p99": refused_in, "grew": grew}


# --- R25, R26: the end, and a long time -------------------------------------------------------------------------------


def check_shutdown(server: Running, streams: int, delay: float) -> dict[str, Any]:
    """Send SIGTERM while streams run; all of them finish, the exit code is 0 and no process is left."""
    found, asked = list[bytes](), json.dumps(LONG | {"stream": True, "max_tokens": 200}).encode()

    def stream() -> None:
        found.append(exchange(server, "POST", "/v1/completions", asked, key=None)[2])

    threads = [threading.Thread(target=stream) for _ in range(streams)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 20
    while metric(server, "heddle_load_active", "gpt") < streams and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(delay)
    begun = time.monotonic()
    server.process.terminate()
    time.sleep(0.2)
    refused = 0
    with suppress(OSError):
        refused = exchange(server, "POST", "/v1/completions", json.dumps(GOOD).encode(), key=None)[0]
    for thread in threads:
        thread.join(40)
    code = server.process.wait(40)
    whole = sum(b"data: [DONE]" in one and b'"finish_reason":"length"' in one for one in found)
    return {
        "finished": whole,
        "code": code,
        "seconds": round(time.monotonic() - begun, 2),
        "refused": refused in (0, 503),
    }


def soak(server: Running, minutes: float, seed: int) -> dict[str, Any]:
    """Keep clients of all kinds busy; return how descriptors, threads and memory changed after the first fifth."""
    end, samples, counts = time.monotonic() + 60 * minutes, list[tuple[float, Footprint]](), dict[str, int]()
    bodies = [drawn_request(random.Random(seed), number) for number in range(24)]
    alone, lock = [answer_of(server, body) for body in bodies], threading.Lock()

    def good(draw: random.Random) -> str:
        which = draw.randrange(len(bodies))
        return "right" if answer_of(server, bodies[which], draw.random() < 0.5) == alone[which] else "wrong"

    def left(draw: random.Random) -> str:
        leave(server, LONG | {"stream": draw.random() < 0.5}, draw.random() * 0.05)
        return "left"

    def broken(draw: random.Random) -> str:
        check_broken_http(server, 1, draw.randrange(1 << 30))
        return "broken"

    def other(draw: random.Random) -> str:
        path, body = draw.choice(OTHER)
        status, found = post(server, path, body)
        assert status == 200, (path, status, found)
        return "other"

    def client(number: int) -> None:
        draw = random.Random(seed + number)
        while time.monotonic() < end:
            kind = draw.choices([good, left, broken, other], [6, 2, 1, 2])[0](draw)
            with lock:
                counts[kind] = counts.get(kind, 0) + 1
            time.sleep(draw.random() * 0.1)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    while time.monotonic() < end:
        time.sleep(max(0.5, minutes * 60 / 60))
        samples.append((time.monotonic(), Footprint.of(server)))
    for thread in threads:
        thread.join()
    assert wait_until_idle(server, 10) < 10
    late = samples[len(samples) // 5 :]
    slope = _slope([(at / 60, one.megabytes) for at, one in late])
    threads_apart = max(one.threads for _, one in late) - min(one.threads for _, one in late)
    ended = Footprint.of(server)
    return counts | {
        "minutes": minutes, "megabytes_per_minute": round(slope, 2), "megabytes": round(ended.megabytes),
        "descriptors": ended.descriptors, "most_descriptors": max(one.descriptors for _, one in late),
        "threads_apart": threads_apart,
    }  # fmt: skip


OTHER: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/embeddings", {"model": "lstm", "input": ["a", "bc"]}),
    ("/v1/heddle/score", {"model": "gpt", "texts": ["abc"]}),
    ("/v1/heddle/classify", {"model": "reader", "texts": ["abc"]}),
    ("/v1/heddle/translate", {"model": "pair", "texts": ["abc"], "max_tokens": 5}),
    ("/tokenize", {"model": "gpt", "prompt": "abc"}),
    ("/v1/chat/completions", {"model": "gpt", "messages": [{"role": "user", "content": "a"}], "max_tokens": 6}),
)


def _slope(points: list[tuple[float, float]]) -> float:
    x, y = ([point[which] for point in points] for which in (0, 1))
    middle, level = sum(x) / len(x), sum(y) / len(y)
    spread = sum((one - middle) ** 2 for one in x)
    return sum((one - middle) * (other - level) for one, other in points) / spread if spread else 0.0


def main() -> None:
    """Run the rows at larger counts, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fuzzed", type=int, default=0, help="fuzzed bodies, and half as many damaged requests")
    parser.add_argument("--drawn", type=int, default=0, help="requests drawn by schemathesis, 2,000 a server")
    parser.add_argument("--hang-ups", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=0, help="of mixed load")
    parser.add_argument("--out", type=Path, help="append a JSON line a row to this file")
    given = parser.parse_args()
    from serving.test_http import check_fuzzed
    from serving.test_schemathesis import check_drawn

    rows: list[tuple[str, bool, Callable[[Running], Any]]] = [
        ("R19 fuzzed bodies", given.fuzzed > 0, lambda server: check_fuzzed(server, given.fuzzed, 19)),
        ("R19 damaged requests", given.fuzzed > 0, lambda server: check_broken_http(server, given.fuzzed // 2, 19)),
        *(
            ("R19 schemathesis", True, lambda server, seed=seed: check_drawn(server, 2000, seed))  # type: ignore[misc]
            for seed in range(0, given.drawn, 2000)
        ),
        ("R23 hang-ups", given.hang_ups > 0, lambda server: check_hang_ups(server, given.hang_ups, 23)),
        ("R26 soak", given.minutes > 0, lambda server: soak(server, given.minutes, 26)),
    ]
    for name, wanted, run in rows:
        if wanted:
            with tiny_server("--slots", "8") as server:
                assert wait_until_idle(server, 10) < 10
                before, begun = Footprint.of(server), time.monotonic()
                found = run(server)
                wait_until_idle(server, 5)
                line = {"row": name, "found": found, "grew": Footprint.of(server).grew(before)}
                line["seconds"] = round(time.monotonic() - begun)
            print(json.dumps(line), flush=True)
            if given.out is not None:
                with given.out.open("a") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
