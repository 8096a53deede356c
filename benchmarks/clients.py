"""Clients of OpenAI's protocol, each in an environment of its own, against `heddle serve` as a process.

    python benchmarks/clients.py --environments FOLDER [--client NAME ...] [--out FILE]

`make clients` makes the environments. The models are small and have random weights. One JSON line a check.
"""

import argparse
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from entry_point import run_main
from harness import small_models
from results import commit, device

from heddle.core import EnvironmentFault, UsageError
from heddle.lm import LM, Origin
from heddle.models.presets import PRESETS
from heddle.text.tokenizers import ByteTokenizer

HERE = Path(__file__).parent
CLIENTS = {  # the folder of the environment, and the script; of npm, relative to that folder
    "langchain-openai": "langchain_openai_checks.py",
    "llm": "llm_checks.py",
    "litellm": "litellm_checks.py",
    "lm-eval": "lm_eval_checks.py",
    "npm": "openai_npm_checks.mjs",
}
CONTEXT = 512
TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def save_models(folder: Path) -> dict[str, Path]:
    """Save a small Transformer and an LSTM, and two models in Hugging Face's format."""
    tokenizer, found = ByteTokenizer().train([]), dict[str, Path]()
    shapes: dict[str, tuple[str, dict[str, int | float]]] = {
        "gpt": ("gpt2", {"layers": 2, "width": 64, "heads": 4, "context": CONTEXT}),
        "lstm": ("lstm_lm", {"layers": 1, "width": 64}),
    }
    for name, (preset, options) in shapes.items():
        model = PRESETS[preset].config(**options, vocab=tokenizer.vocab).build(1)
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.2 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
        found[name] = LM(model, tokenizer, Origin(template=TEMPLATE)).save(folder / name)
    return found | {path.name: path for path in small_models(folder, CONTEXT)}


@contextmanager
def server(folders: dict[str, Path], key: str, log: Path) -> Iterator[str]:
    """Run `heddle serve` until the block ends; yield its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    models = [word for name, folder in folders.items() for word in ("-m", f"{name}={folder}")]
    command = [sys.executable, "-m", "heddle.cli.main", "serve", *models, "--port", str(port)]
    url, end = f"http://127.0.0.1:{port}", time.monotonic() + 120
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream, env=os.environ | {"HEDDLE_API_KEY": key})
        try:
            while not ready(url):
                if process.poll() is not None or time.monotonic() > end:
                    raise EnvironmentFault(f"serve: want a server, got {log.read_text()[-500:]}")
                time.sleep(0.2)
            yield url
        finally:
            process.terminate()
            process.wait(40)


def ready(url: str) -> bool:
    """Tell whether the server accepts requests."""
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def run(client: str, environments: Path, settings: dict[str, str]) -> list[dict[str, Any]]:
    """Run the checks of a client in its environment; return their lines."""
    own, script = environments / client, HERE / "client_checks" / CLIENTS[client]
    program = ["node", str(script)] if client == "npm" else [str(own.absolute() / "bin" / "python"), str(script)]
    if not own.is_dir():
        raise UsageError(f"environments: want a folder {client} in {environments}, as `make clients` makes it")
    path = os.pathsep.join(str(HERE.parent / name) for name in ("src", "benchmarks")) if client == "lm-eval" else ""
    given = dict(os.environ) | settings | {"PYTHONPATH": path}
    done = subprocess.run(program, cwd=own, env=given, capture_output=True, text=True, check=False, timeout=300)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"client"')]
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        lines.append({"client": client, "check": "all of them ran", "ok": False, "fault": last[:300]})
    for line in lines:
        print(json.dumps(line, ensure_ascii=False), flush=True)
    return lines


def check_all(clients: Sequence[str], environments: Path) -> list[dict[str, Any]]:
    """Check clients, one after the other."""
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        folders, key = save_models(Path(place)), secrets.token_hex(8)
        several = [name for name in clients if name != "lm-eval"]
        rounds: list[tuple[list[str], tuple[str, ...]]] = [(several, ("gpt", "lstm"))] if several else []
        rounds += [(["lm-eval"], (name,)) for name in ("gpt2", "llama") if "lm-eval" in clients]  # it names no model
        for some, names in rounds:
            served = {name: folders[name] for name in names}
            with server(served, key, Path(place) / "log") as url:
                hugging = json.dumps({name: str(folder) for name, folder in served.items()})
                settings = {"HEDDLE_URL": url, "HEDDLE_KEY": key, "HEDDLE_FOLDERS": hugging}
                found += [line for client in some for line in run(client, environments, settings)]
    return found


def main() -> None:
    """Check the clients that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--environments", type=Path, required=True, help="the folder of the environments")
    parser.add_argument("--client", nargs="*", choices=CLIENTS, default=list(CLIENTS), help="all by default")
    parser.add_argument("--out", type=Path, help="also write the lines to this file")
    given = parser.parse_args()
    lines = check_all(given.client, given.environments)
    if given.out is not None:
        kept = [line | {"commit": commit(), "device": device()} for line in lines]
        given.out.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in kept))
    failed = [line for line in lines if not line["ok"]]
    print(f"{len(lines) - len(failed)} of {len(lines)} checks passed")
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    run_main(main)
