"""A server for tests: `heddle serve` as a process of its own, over small models that the tests save."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from heddle.core import replace
from heddle.lm import LM, Origin
from heddle.models.networks import ModelConfig
from heddle.models.presets import PRESETS
from heddle.nn.outputs import (
    MaskedTokenOutputConfig,
    SequenceClassOutputConfig,
    SpanOutputConfig,
    TokenClassOutputConfig,
)
from heddle.text.tokenizers import MASK, ByteTokenizer, Tokenizer

KEY = "canary-key-58151"
TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}\n{% endfor %}"
    "{% if tools %}tools: {{ tools | tojson }}\n{% endif %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
MODELS = {
    "gpt": ("gpt2", {"layers": 2, "width": 64, "heads": 4, "context": 512}),
    "lstm": ("lstm_lm", {"layers": 1, "width": 64}),
    "pair": ("seq2seq_attention", {"layers": 1, "width": 64}),
}
READER = "reader"  # an encoder with an output for every task
OUTPUTS = (
    SequenceClassOutputConfig(classes=2, labels=("good", "bad")),
    TokenClassOutputConfig(classes=3, labels=("O", "B-PER", "I-PER")),
    SpanOutputConfig(),
    MaskedTokenOutputConfig(),
)
SOURCE = Path(__file__).parents[2] / "src"


def save_models(folder: Path) -> dict[str, Path]:
    """Save the models; their probabilities are far from even."""
    tokenizer, masking = ByteTokenizer().train([]), ByteTokenizer().train([]).with_special([MASK])
    configs = {name: PRESETS[preset].config(**sizes, vocab=tokenizer.vocab) for name, (preset, sizes) in MODELS.items()}
    bert = PRESETS["bert-base"].config(layers=1, width=32, heads=2, context=64, vocab=masking.vocab)
    return {
        name: save(folder / name, config, masking if name == READER else tokenizer, TEMPLATE)
        for name, config in (configs | {READER: replace(bert, outputs=OUTPUTS)}).items()
    }


def save(folder: Path, config: ModelConfig, tokenizer: Tokenizer, template: str | None = None) -> Path:
    """Save a model whose probabilities are far from even."""
    model = config.build(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.2 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    return LM(model, tokenizer, Origin(template=template)).save(folder)


@dataclass
class Running:
    """A server that runs."""

    process: "subprocess.Popen[bytes]"
    port: int
    log: Path

    @property
    def url(self) -> str:
        """Return its address."""
        return f"http://127.0.0.1:{self.port}"

    def status(self, path: str) -> int:
        """Return the status of a GET, 0 while nobody answers."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0


@contextmanager
def serving(folders: dict[str, Path], log: Path, *options: str, key: str | None = KEY) -> Iterator[Running]:
    """Run `heddle serve` until the block ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    models = [word for name, folder in folders.items() for word in ("-m", f"{name}={folder}")]
    command = [sys.executable, "-m", "heddle.cli.main", "serve", *models, "--port", str(port), *options]
    one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment = {**os.environ, **one_thread, "PYTHONPATH": str(SOURCE)} | (
        {} if key is None else {"HEDDLE_API_KEY": key}
    )
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream, env=environment)
        running = Running(process, port, log)
        try:
            end = time.monotonic() + 90
            while running.status("/ready") != 200:
                assert process.poll() is None and time.monotonic() < end, log.read_text()
                time.sleep(0.1)
            yield running
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
