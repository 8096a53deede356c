"""Foreign models: small folders of Hugging Face's and GGUF files, whole or harmed, for the rows about hostile files."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heddle.checkpoints.hf import save_model
from heddle.models.presets import build

SIZES = {"layers": 2, "width": 16, "heads": 2, "vocab": 11, "context": 16}
# One of every way to lay weights out: plain, turned and joined, shared, stacked, two stacks.
PRESETS: dict[str, dict[str, Any]] = {
    "llama": SIZES,
    "gpt2": SIZES,
    "bert-base": SIZES,
    "albert-base": SIZES,
    "bart-base": SIZES,
    "t5-small": SIZES | {"context": 512},
    "mixtral-8x7b": SIZES | {"kv_heads": 1, "hidden": 24, "context": 4096},
    "qwen3-0.6b": SIZES | {"kv_heads": 1, "hidden": 24},
}


def folder(path: Path, preset: str = "llama") -> Path:
    """Write a small model as a folder of theirs."""
    save_model(build(preset, **PRESETS[preset]), path)
    (path / "checksums.json").unlink()  # so that what is harmed is found by what it is, as in folders of others
    return path


def copied(source: Path, target: Path) -> Path:
    """Copy a folder's files."""
    target.mkdir()
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


# --- GGUF -------------------------------------------------------------------------------------------------------------

Value = int | float | str | bool | list[Any]


def value_of(value: Value) -> bytes:
    """Return a value of a header with its type before it."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + text_of(value)
    inner = [value_of(item) for item in value]
    kind = inner[0][:4] if inner else struct.pack("<I", 4)
    return struct.pack("<I", 9) + kind + struct.pack("<Q", len(inner)) + b"".join(item[4:] for item in inner)


def text_of(text: str) -> bytes:
    """Return a text of a header."""
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def gguf(keys: Mapping[str, Value], tensors: Mapping[str, Tensor]) -> bytes:
    """Return a file of numbers in float32."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    head += b"".join(text_of(name) + value_of(value) for name, value in keys.items())
    at, data = 0, b""
    for name, tensor in tensors.items():
        head += text_of(name) + struct.pack("<I", tensor.ndim)
        head += b"".join(struct.pack("<Q", side) for side in reversed(tensor.shape)) + struct.pack("<IQ", 0, at)
        raw = tensor.float().contiguous().numpy().tobytes()
        raw += bytes(-len(raw) % 32)
        data, at = data + raw, at + len(raw)
    return head + bytes(-len(head) % 32) + data


def llama_keys() -> dict[str, Value]:
    """Return the header of a small Llama."""
    sizes = {
        "context_length": 16, "embedding_length": 16, "block_count": 2, "feed_forward_length": 24,
        "attention.head_count": 4, "attention.head_count_kv": 2,
    }  # fmt: skip
    keys: dict[str, Value] = {"general.architecture": "llama", "general.name": "small"}
    keys |= {f"llama.{name}": value for name, value in sizes.items()}
    keys |= {"llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 1e4}
    return keys | {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": list("abcdefghijk")}


def llama_tensors() -> dict[str, Tensor]:
    """Return its weights."""
    draw = torch.Generator().manual_seed(1)
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (11, 16), "output_norm": (16,), "output": (11, 16)}
    for i in range(2):
        inner = {
            "attn_norm": (16,), "attn_q": (16, 16), "attn_k": (8, 16), "attn_v": (8, 16), "attn_output": (16, 16),
            "ffn_norm": (16,), "ffn_gate": (24, 16), "ffn_up": (24, 16), "ffn_down": (16, 24),
        }  # fmt: skip
        shapes |= {f"blk.{i}.{name}": shape for name, shape in inner.items()}
    return {f"{name}.weight": torch.randn(shape, generator=draw) for name, shape in shapes.items()}


# --- safetensors ------------------------------------------------------------------------------------------------------


def split(file: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header and the data of a safetensors file."""
    length = int.from_bytes(file[:8], "little")
    return json.loads(file[8 : 8 + length]), file[8 + length :]


def join(header: object, data: bytes) -> bytes:
    """Return a safetensors file."""
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data
