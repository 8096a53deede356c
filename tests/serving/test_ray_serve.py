"""Ray Serve: deploy/ray_serve.py on a local cluster of two replicas, as a process; one of them dies."""

import importlib.util
import inspect
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest
from serving.server import KEY, Running
from serving.test_http import GOOD, LONG, is_error
from serving.wire import connection, exchange, head, metric, post

from heddle.cli.serve import serve
from heddle.core import HeddleError
from heddle.serving import EngineConfig

HAVE_RAY = all(find_spec(name) is not None for name in ("ray", "uvicorn", "aiohttp_cors"))  # ray[serve] brings the last
needs_ray = pytest.mark.skipif(
    not HAVE_RAY, reason="Ray Serve is not installed; make cluster installs it and runs this"
)
ROOT = Path(__file__).parents[2]
SCRIPT = """
import os, sys, socket, ray
from ray import serve
sys.path.insert(0, sys.argv[1])
from deploy.ray_serve import build
ray.init(num_cpus=4, include_dashboard=False, logging_level="error")
serve.start(http_options={"port": int(sys.argv[2])})
serve.run(build({"models": sys.argv[3], "replicas": 2, "slots": 4}))
print("served by Ray", flush=True)
sys.stdin.read()
serve.shutdown()
"""
PLACES = ("waiting", "reading", "active", "searching")


@contextmanager
def cluster(folders: dict[str, Path], place: Path) -> Iterator[Running]:
    """Run the deployment until the block ends."""
    from serving.server import SOURCE

    port, log = 18_000 + os.getpid() % 10_000, place / "log"
    models = ",".join(f"{name}={folders[name]}" for name in ("gpt", "lstm"))
    own = {"HEDDLE_API_KEY": KEY, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-c", SCRIPT, str(ROOT), str(port), models]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=stream, stderr=stream, env=os.environ | own, cwd=place
        )
    try:
        end = time.monotonic() + 180
        while b"served by Ray\n" not in log.read_bytes():
            assert process.poll() is None and time.monotonic() < end, log.read_text(errors="replace")[-3000:]
            time.sleep(0.3)
        yield Running(process, port, log)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)


def deployment() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ray_serve", ROOT / "deploy" / "ray_serve.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where it looks for itself
    spec.loader.exec_module(module)
    return module


def replicas(session: int) -> list[int]:
    """Return the processes of the deployment's replicas."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (
                b"ServeReplica:default:heddle" in (folder / "cmdline").read_bytes()
                and os.getsid(int(folder.name)) == session
            ):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@needs_ray
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_answers_streams_frees_slots_and_outlives_a_replica(
    folders: dict[str, Path], lms: dict[str, Any], tmp_path: Path
) -> None:
    with cluster(folders, tmp_path) as server:
        status, found = post(server, "/v1/completions", GOOD)
        assert status == 200, found
        assert found["choices"][0]["text"] == lms["gpt"].generate("hello", max_tokens=3)
        check_stream(server, lms)
        status, _, body = exchange(server, "GET", "/v1/models", key="wrong")
        assert status == 401 and is_error(body)
        status, _, body = exchange(server, "POST", "/v1/completions", json.dumps(GOOD | {"wrong": 1}).encode())
        assert status == 400 and is_error(body)
        for number in range(20):
            leave(server, number % 2 == 0)
        assert all_idle(server)
        first, *_ = running = replicas(os.getsid(server.process.pid))
        assert len(running) == 2
        os.kill(first, signal.SIGKILL)
        end = time.monotonic() + 60
        while len(set(replicas(os.getsid(server.process.pid))) - {first}) < 2 and time.monotonic() < end:
            time.sleep(0.2)
        answers = [exchange(server, "POST", "/v1/completions", json.dumps(GOOD).encode())[0] for _ in range(10)]
        assert answers == [200] * 10


def check_stream(server: Running, lms: dict[str, Any]) -> None:
    body = {"model": "lstm", "prompt": "hello", "max_tokens": 20, "temperature": 0, "stream": True}
    status, headers, raw = exchange(server, "POST", "/v1/completions", json.dumps(body).encode())
    assert status == 200 and headers["content-type"].startswith("text/event-stream")
    assert b"data: [DONE]" in raw
    lines = [line.partition(b"data: ")[2] for line in raw.splitlines() if b"data: {" in line]
    text = "".join(json.loads(line)["choices"][0]["text"] for line in lines)
    assert text == lms["lstm"].generate("hello", max_tokens=20)


def leave(server: Running, stream: bool) -> None:
    """Hang up while the answer is being written."""
    body = json.dumps(LONG | {"stream": stream}).encode()
    headers = {"Host": "localhost", "Authorization": f"Bearer {KEY}", "Content-Length": str(len(body))}
    with connection(server) as wire:
        wire.sendall(head("POST", "/v1/completions", headers) + body)
        time.sleep(0.05)


def all_idle(server: Running) -> bool:
    """Wait until no replica does anything; twenty looks see both."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if not any(metric(server, f"heddle_load_{place}", "gpt") for place in PLACES for _ in range(5)):
            return True
    return False


def stand_in(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Put a module in Ray's place, which notes what the deployment asks of it; return that."""
    pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
    asked: dict[str, Any] = {}
    ray, deployed = MagicMock(), MagicMock()
    ray.serve.deployment = lambda replica, **options: asked.update(options) or deployed
    for name, module in (("ray", ray), ("ray.serve", ray.serve)):
        monkeypatch.setitem(sys.modules, name, module)
    return asked


def test_arguments_that_are_not_known_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    build = deployment().build
    good = {"models": "a=runs/first"}
    for wrong, message in (
        ({"model": "runs/first"}, "arguments: want some of models, replicas"),
        ({}, "models: want NAME=MODEL"),
        ({"models": "runs/first"}, "models: want NAME=MODEL,..., got runs/first"),
        ({"models": "a=runs/first,a=runs/second"}, "models: want each name once, got a=runs/first,a=runs/second"),
        (good | {"slots": "abc"}, "^slots: want a number, got abc$"),
        (good | {"max_wait": "soon"}, "^max_wait: want a number, got soon$"),
        (good | {"replicas": 0}, "^replicas: want at least 1, got 0$"),
        (good | {"slots": 0}, "slots: want at least 1"),
    ):
        with pytest.raises(HeddleError, match=message):
            build(wrong)


def test_defaults_are_those_of_heddle_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, module = stand_in(monkeypatch), deployment()
    config = EngineConfig()
    assert (module.ARGUMENTS["waiting"], module.ARGUMENTS["slots"]) == (str(config.waiting), str(config.slots))
    assert float(module.ARGUMENTS["max_wait"]) == inspect.signature(serve).parameters["max_wait"].default
    for device, gpus in (("auto", 0), ("cuda", 1), ("cuda:0", 1)):
        module.build({"models": "a=runs/first", "device": device})
        assert asked["ray_actor_options"]["num_gpus"] == gpus
