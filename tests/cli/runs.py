"""Runs: small run folders for tests, saved as training saves them."""

import json
from pathlib import Path
from typing import Any

import torch

from heddle.checkpoints.store import Snapshot, Store
from heddle.core import encode
from heddle.models.networks import Model, ModelConfig
from heddle.models.presets import PresetConfig, preset
from heddle.text.tokenizers import ByteTokenizer, Tokenizer

CONTEXT = 48
TOKENIZER = ByteTokenizer().train([])


def config(name: str = "first", **dials: Any) -> PresetConfig:
    """Return a small preset over bytes; recurrent ones have no heads."""
    small = {"layers": 1, "width": 16, "heads": 2, "vocab": TOKENIZER.vocab, "context": CONTEXT}
    return PresetConfig(
        name=name, **{dial: size for dial, size in small.items() if dial in preset(name).option_names} | dials
    )


def loud_model(made: ModelConfig) -> Model:
    """Build a model whose odds are far from even, so that greedy texts are not all one letter."""
    model = made.build(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    return model


def save_run(
    folder: Path,
    made: ModelConfig | None = None,
    steps: tuple[int, ...] = (10,),
    tokenizer: Tokenizer = TOKENIZER,
    data: dict[str, Any] | None = None,
    average: bool = False,
) -> Model:
    """Save a run folder with a checkpoint at each step; return the model as it was at the last."""
    made = config() if made is None else made
    folder.mkdir(parents=True)
    tokenizer.save(folder / "tokenizer.json")
    plain = {"model": encode(made)} | ({} if data is None else {"data": data})
    (folder / "config.json").write_text(json.dumps(plain))
    texts = {name: (folder / name).read_text() for name in ("config.json", "tokenizer.json")}
    model, store = loud_model(made), Store(folder / "checkpoints", keep_last=9)
    for step in steps:
        with torch.no_grad():
            next(model.parameters()).add_(0.01)
        tensors = {"model": model.weights()}
        if average:
            tensors["average"] = {name: weight + 1 for name, weight in model.weights().items()}
        store.save(Snapshot(step, tensors, {"step": step}, texts, metric=float(step % 7)))
    return model


def damage(checkpoint: Path) -> None:
    """Flip one bit of the weights."""
    path = checkpoint / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(data)
