"""Peer servers: Heddle and vLLM as processes that serve one Hugging Face folder, and requests to either."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heddle.core import EnvironmentFault

NAME = "model"  # by which both serve it
START_SECONDS = 300  # vLLM compiles the model


@dataclass(frozen=True)
class PeerServer:
    """A server that runs."""

    kind: str
    pid: int
    port: int

    @property
    def cpu_seconds(self) -> float:
        """Return the CPU seconds that it and its children have used so far."""
        ticks = sum(_ticks(pid) for pid in (self.pid, *_descendants(self.pid)))
        return ticks / os.sysconf("SC_CLK_TCK")

    def post(self, path: str, body: Any) -> Any:
        """Post JSON; return the JSON of the response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            found = json.loads(response.read())
        finally:
            connection.close()
        if response.status != 200:
            raise EnvironmentFault(f"{self.kind}: want an answer, got {response.status}: {json.dumps(found)[:300]}")
        return found

    def get(self, path: str) -> Any:
        """Return the JSON of a GET."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def stream(self, path: str, body: Any) -> list[float]:
        """Post a streaming request; return the time at which each of its chunks came."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            connection.request("POST", path, json.dumps(body | {"stream": True}), {"Content-Type": "application/json"})
            lines = iter(connection.getresponse().readline, b"")
            return [time.monotonic() for line in lines if line.startswith(b"data: {")]
        finally:
            connection.close()


def heddle_command(folder: Path, port: int, slots: int, context: int) -> list[str]:
    """Return the command line of `heddle serve`."""
    limits = ["--slots", str(slots), "--capacity", str(context)]
    return [sys.executable, "-m", "heddle.cli.main", "serve", "-m", f"{NAME}={folder}", "--port", str(port), *limits]


def vllm_command(python: Path, folder: Path, port: int, slots: int, context: int) -> list[str]:
    """Return the command line of vLLM's server, in the dtype of the folder."""
    limits = ["--max-num-seqs", str(slots), "--max-model-len", str(context), "--dtype", "float32"]
    place = ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", NAME, "--model", str(folder)]
    return [str(python), "-m", "vllm.entrypoints.openai.api_server", *place, *limits]


def vllm_settings(python: Path, threads: int) -> dict[str, str]:
    """Return the environment that vLLM's documentation advises for a CPU: Intel's OpenMP first, threads not bound."""
    openmp = python.absolute().parents[1] / "lib" / "libiomp5.so"
    return {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(threads),
        "PYTHONPATH": "",
    } | ({"LD_PRELOAD": str(openmp)} if openmp.exists() else {})


@contextmanager
def running(kind: str, command: Sequence[str], port: int, settings: dict[str, str], log: Path) -> Iterator[PeerServer]:
    """Run a server until the block ends."""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, stdout=stream, stderr=stream, env=os.environ | settings, start_new_session=True
        )
    try:
        end = time.monotonic() + START_SECONDS
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > end:
                raise EnvironmentFault(f"{kind}: want a server, got {log.read_text(errors='replace')[-700:]}")
            time.sleep(0.5)
        yield PeerServer(kind, process.pid, port)
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def _stat(pid: int) -> list[str]:
    """Return what /proc says of a process, from its state on; nothing of one that has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _ticks(pid: int) -> int:
    return sum(map(int, _stat(pid)[11:13]))


def _descendants(pid: int) -> list[int]:
    parents = {int(path.name): _stat(int(path.name))[1:2] for path in Path("/proc").glob("[0-9]*")}
    found, fresh = list[int](), [pid]
    while fresh:
        fresh = [child for child, parent in parents.items() if parent and int(parent[0]) in fresh]
        found += fresh
    return found
