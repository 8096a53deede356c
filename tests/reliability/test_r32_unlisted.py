"""R32: files in a checkpoint that its manifest does not list, of names that mean something elsewhere: none is used."""

import json
from pathlib import Path
from typing import Any

import torch
from cli.runs import save_run

from heddle.checkpoints import find_source
from heddle.checkpoints.store import serialize
from heddle.text.tokenizers import CharacterTokenizer

OTHER = json.dumps(CharacterTokenizer().train(["some other letters"]).to_json())
ROLES = {"heddle_roles": {"end": 0, "begin": 1, "ends": [0, 1], "text": [[1], [0]], "source": [[1], [0]]}}
CONFIGS = {"model_type": "gpt2", "base_model_name_or_path": "elsewhere", "peft_type": "LORA", "chat_template": "evil"}
WEIGHTS = b"".join(bytes(block) for block in serialize({"w": torch.ones(1)}, "w"))
UNLISTED: dict[str, bytes] = {
    "chat_template.jinja": b"evil",
    "tokenizer_config.json": json.dumps({**CONFIGS, **ROLES}).encode(),
    "tokenizer_target.json": OTHER.encode(),
    "adapter_config.json": json.dumps(CONFIGS).encode(),
    "adapter_model.safetensors": WEIGHTS,
    "average.safetensors": WEIGHTS,
    "optimizer.safetensors": WEIGHTS,
    "carried.safetensors": WEIGHTS,
    "guard.safetensors": WEIGHTS,
    "base.safetensors": WEIGHTS,
    "model.gguf": b"GGUF\x03\x00\x00\x00",
    "generation_config.json": b'{"eos_token_id": 7}',
    "special_tokens_map.json": b'{"eos_token": "a"}',
    "added_tokens.json": b'{"evil": 5}',
    "vocab.json": b'{"evil": 0}',
    "merges.txt": b"e v",
    "tokenizer.model": b"evil",
    "pytorch_model.bin": b"evil",
    "model.safetensors.index.json": b'{"weight_map": {}}',
    "environment.json": b"{}",
    "prepared.json": b"{}",
    "extra.safetensors": b"not even tensors",
}


def seen(path: Path) -> list[Any]:
    """Return all that a model's users see of it."""
    source = find_source(path)
    tokenizer = source.tokenizer()
    assert tokenizer is not None
    weights = {name: weight.tolist() for name, weight in source.model().weights().items()}
    return [source.describe(), source.template(), tokenizer.fingerprint, source.special_tokens(), weights]


def test_r32_what_the_manifest_does_not_list_does_not_exist(tmp_path: Path) -> None:
    save_run(tmp_path / "run")
    checkpoint = tmp_path / "run" / "checkpoints" / "step-00000010"
    wanted = seen(tmp_path / "run")
    for name, data in UNLISTED.items():
        path = checkpoint / name
        path.write_bytes(data)
        for place in (tmp_path / "run", checkpoint):
            assert seen(place) == wanted, f"{name} was used from {place.name}"
        path.unlink()
    print(f"R32: 0 of {len(UNLISTED)} unlisted names in a checkpoint used")
