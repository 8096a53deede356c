"""GGUF models: metadata and tensor names are translated to Hugging Face's, and its families then load the model."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from heddle.checkpoints.formats.gguf import GgufFile
from heddle.checkpoints.hf import WeightSource, load_weights
from heddle.core import DamageError, UsageError, brief, hint
from heddle.core.system import Hardware
from heddle.models.networks import Model

# GGUF name -> Hugging Face name; {i} is the layer.
NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "blk.{i}.attn_norm.weight": "model.layers.{i}.input_layernorm.weight",
    "blk.{i}.attn_q.weight": "model.layers.{i}.self_attn.q_proj.weight",
    "blk.{i}.attn_k.weight": "model.layers.{i}.self_attn.k_proj.weight",
    "blk.{i}.attn_v.weight": "model.layers.{i}.self_attn.v_proj.weight",
    "blk.{i}.attn_output.weight": "model.layers.{i}.self_attn.o_proj.weight",
    "blk.{i}.ffn_norm.weight": "model.layers.{i}.post_attention_layernorm.weight",
    "blk.{i}.ffn_gate.weight": "model.layers.{i}.mlp.gate_proj.weight",
    "blk.{i}.ffn_up.weight": "model.layers.{i}.mlp.up_proj.weight",
    "blk.{i}.ffn_down.weight": "model.layers.{i}.mlp.down_proj.weight",
}
BIASES = {
    f"blk.{{i}}.attn_{a}.bias": f"model.layers.{{i}}.self_attn.{b}.bias"
    for a, b in {"q": "q_proj", "k": "k_proj", "v": "v_proj"}.items()
}
LAYER = re.compile(r"blk\.(0|[1-9][0-9]{0,4})\.(.+)")
HEAD_NORMS = {f"blk.{{i}}.attn_{a}_norm.weight": f"model.layers.{{i}}.self_attn.{a}_norm.weight" for a in ("q", "k")}
ROPE_FREQS = "rope_freqs.weight"  # divisors of the rotary frequencies


@dataclass(frozen=True)
class GgufArchitecture:
    """A GGUF architecture: its Hugging Face family, its names, and whether rotary pairs are interleaved."""

    family: str
    names: Mapping[str, str]
    interleaved_rope: bool = False


ARCHITECTURES = {
    "llama": GgufArchitecture("llama", NAMES, interleaved_rope=True),
    "qwen2": GgufArchitecture("qwen2", NAMES | BIASES),
    "qwen3": GgufArchitecture("qwen3", NAMES | HEAD_NORMS),
}


class ArchitectureMetadata:
    """The metadata of a file that belongs to its architecture."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.kind = str(file.metadata.get("general.architecture"))
        if self.kind not in ARCHITECTURES:
            want = f"want one of {', '.join(ARCHITECTURES)}{hint(self.kind, ARCHITECTURES)}"
            raise UsageError(f"{file.path}: architecture {brief(self.kind)}: {want}")

    def __call__(self, name: str, kind: type = int, default: Any = None) -> Any:
        """Return the value of a key, without the name of the architecture."""
        found = self.file.metadata.get(f"{self.kind}.{name}", default)
        if not isinstance(found, kind):
            raise DamageError(f"{self.file.path}: {self.kind}.{name}: want {kind.__name__}, found {brief(found)}")
        return found


def hf_config_of_gguf(file: GgufFile) -> dict[str, Any]:
    """Return the metadata of a file as a Hugging Face config."""
    key = ArchitectureMetadata(file)
    heads, width, tensors = key("attention.head_count"), key("embedding_length"), file.tensor_infos()
    config = {
        "model_type": ARCHITECTURES[key.kind].family,
        "vocab_size": tensors["token_embd.weight"].shape[0] if "token_embd.weight" in tensors else 0,
        "hidden_size": width,
        "intermediate_size": key("feed_forward_length"),
        "num_hidden_layers": key("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": key("attention.head_count_kv", int, heads),
        "head_dim": key("attention.key_length", int, width // max(1, heads)),
        "max_position_embeddings": key("context_length"),
        "rms_norm_eps": key("attention.layer_norm_rms_epsilon", float),
        "rope_parameters": {"rope_theta": key("rope.freq_base", float, 10_000.0), "rope_type": "default"},
        "tie_word_embeddings": "output.weight" not in tensors,
    }
    if key("rope.dimension_count", int, config["head_dim"]) != config["head_dim"]:
        raise UsageError(f"{file.path}: {key.kind}.rope.dimension_count: want all of a head, {config['head_dim']}")
    factor = _linear_scaling(key)
    if factor != 1:
        config["rope_parameters"] |= {"rope_type": "linear", "factor": factor}
    if ROPE_FREQS in tensors:
        if factor != 1:
            raise UsageError(
                f"{file.path}: {key.kind}.rope.scaling.factor: want 1 together with {ROPE_FREQS}, found {factor}"
            )
        config["rope_parameters"] |= _llama3_scaling(file, config["rope_parameters"]["rope_theta"])
    return config


def _linear_scaling(key: ArchitectureMetadata) -> float:
    """Return the factor of linear rotary scaling, as llama.cpp reads it: linear is the default, 0 means 1."""
    kind = key("rope.scaling.type", str, "linear")
    if kind not in ("none", "linear"):
        raise UsageError(f"{key.file.path}: {key.kind}.rope.scaling.type: want none or linear, found {brief(kind)}")
    if key("rope.scaling.attn_factor", float, 1.0) != 1:
        raise UsageError(f"{key.file.path}: {key.kind}.rope.scaling.attn_factor: want 1 (no scaling of attention)")
    factor = key("rope.scaling.factor", float, key("rope.scale_linear", float, 0.0))  # the latter is the old name
    return 1.0 if kind == "none" or factor == 0 else float(factor)


def _llama3_scaling(file: GgufFile, base: float) -> dict[str, Any]:
    """Return Llama 3's rotary scaling, which a file stores as one divisor for each rotary pair."""
    found = file[ROPE_FREQS].flatten()
    factor, context = float(found.max()), 8192  # the original context of Llama 3
    turns = context * base ** -(torch.arange(len(found)) / len(found)) / (2 * math.pi)  # in that context
    share = ((turns - 1.0) / (4.0 - 1.0)).clamp(0, 1)
    if not torch.allclose(found, 1 / ((1 - share) / factor + share), rtol=1e-3):
        raise UsageError(f"{file.path}: tensor {ROPE_FREQS}: want Llama 3's RoPE scaling, found another one")
    rule = {"rope_type": "llama3", "factor": factor, "original_max_position_embeddings": context}
    return rule | {"low_freq_factor": 1.0, "high_freq_factor": 4.0}


@final
class GgufWeights(WeightSource):
    """The tensors of a GGUF file under Hugging Face's names; rotary pairs are moved from interleaved to halves."""

    def __init__(self, file: GgufFile, config: Mapping[str, Any]) -> None:
        kind = ARCHITECTURES[str(file.metadata["general.architecture"])]
        self._file = file
        self._names: dict[str, str] = {}
        for name in file.tensor_infos():
            layer = LAYER.match(name)
            hf_name = kind.names.get(name if layer is None else f"blk.{{i}}.{layer[2]}")
            if hf_name is not None:
                self._names[hf_name if layer is None else hf_name.format(i=int(layer[1]))] = name
            elif name != ROPE_FREQS:
                raise DamageError(f"{file.path}: unexpected tensor {brief(name)} for a model of kind {kind.family}")
        self._interleaved_rope = kind.interleaved_rope
        self._heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}

    def __getitem__(self, name: str) -> Tensor:
        tensor, part = self._file[self._names[name]], name.split(".")[-2]
        if not self._interleaved_rope or part not in self._heads:
            return tensor
        pairs = tensor.unflatten(0, (self._heads[part], -1, 2))
        halves: Tensor = pairs.transpose(1, 2).reshape(tensor.shape)
        return halves

    @property
    def where(self) -> str:
        return str(self._file.path)

    def shape(self, name: str) -> torch.Size:
        return torch.Size(self._file.tensor_infos()[self._names[name]].shape)

    def read_into(self, name: str, into: Tensor) -> None:
        into.copy_(self[name])

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def load_gguf_model(file: GgufFile, hardware: Hardware | None = None) -> Model:
    """Load the model of a GGUF file."""
    config = hf_config_of_gguf(file)
    return load_weights(config, GgufWeights(file, config), str(file.path), hardware)
