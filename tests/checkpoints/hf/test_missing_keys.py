"""Keys that a Hugging Face config lacks: each has the default that `transformers` gives it, or is refused by name."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import transformers as hf
from checkpoints.hf.test_families import CASES
from checkpoints.hf.test_families_encoders import cases as encoder_cases

from heddle.checkpoints.hf.config_reader import IGNORED_KEYS
from heddle.checkpoints.hf.convert import FAMILIES, canonical
from heddle.core import ConfigError, diff
from heddle.models.networks import ModelConfig

# Sizes without a default here: a config that lacks one is refused.
SIZES = {
    "d_ff", "d_kv", "d_model", "decoder_attention_heads", "decoder_ffn_dim", "decoder_layers", "dim",
    "encoder_attention_heads", "encoder_ffn_dim", "encoder_layers", "ffn_dim", "hidden_dim", "hidden_size",
    "intermediate_size", "kv_lora_rank", "max_position_embeddings", "moe_intermediate_size", "n_embd", "n_head",
    "n_heads", "n_layer", "n_layers", "n_positions", "n_routed_experts", "n_shared_experts", "num_attention_heads",
    "num_experts", "num_heads", "num_hidden_layers", "num_layers", "num_local_experts", "qk_nope_head_dim",
    "qk_rope_head_dim", "v_head_dim", "vocab_size",
}  # fmt: skip
NESTED = ("rope_parameters", "sliding_attention", "full_attention")
READ = {"pad_token_id"}  # of the keys that most families ignore

Settings = tuple[type[hf.PreTrainedConfig], dict[str, Any], str]
ALL: dict[str, list[Settings]] = {name: [] for name in FAMILIES}
for found in CASES:
    ALL[found.family].append((found.config, found.settings, found.model.__name__))
for encoder in encoder_cases():
    kind = getattr(hf, encoder.kind).config_class
    if encoder.kind.endswith(("Model", "ForSequenceClassification")):
        ALL[kind.model_type].append((kind, encoder.settings, encoder.kind))


def written(config: hf.PreTrainedConfig, architecture: str) -> dict[str, Any]:
    """Return a config of theirs with every key, as JSON has it."""
    return {**json.loads(config.to_json_string(use_diff=False)), "architectures": [architecture]}


def paths(config: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of each key, rotary settings included."""
    for key, value in config.items():
        if above or key not in IGNORED_KEYS or key in READ:
            yield (*above, key)
        if key in NESTED and isinstance(value, dict):
            yield from paths(value, (*above, key))


def without(config: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """Return a copy that lacks one key."""
    copy: dict[str, Any] = json.loads(json.dumps(config))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return copy


def read(family: str, config: dict[str, Any]) -> ModelConfig | str:
    """Return the model of a config, or the line that refuses it."""
    try:
        return FAMILIES[family].read(FAMILIES[family].reader(config))
    except ConfigError as error:
        return str(error)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_missing_key_has_the_default_of_transformers(family: str) -> None:
    assert ALL[family], "no case of this family"
    for theirs, settings, architecture in ALL[family]:
        whole = written(theirs(**settings), architecture)
        for path in paths(whole):
            part = without(whole, path)
            ours = read(family, part)
            if path[-1] in SIZES and isinstance(ours, str):
                assert "got 'nothing'" in ours
                continue
            try:
                filled = written(theirs.from_dict(json.loads(json.dumps(part))), architecture)
            except (ValueError, KeyError):  # they refuse it too
                assert isinstance(ours, str), path
                continue
            want = read(family, filled)
            if ours != want:  # but for sizes that are written out
                assert not isinstance(ours, str), (path, ours)
                assert not isinstance(want, str), (path, want)
                assert diff(canonical(ours), canonical(want)) == [], path
