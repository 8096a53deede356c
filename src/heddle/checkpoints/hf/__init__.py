"""Hugging Face: folders of theirs in and out, one small file for each family."""

from heddle.checkpoints.hf.convert import config_in, load_model, load_weights, read_ours, save_model
from heddle.checkpoints.hf.folder import (
    CONFIG,
    GENERATION,
    INDEX,
    SINGLE,
    is_folder,
    read_config,
    read_generation,
    read_index,
    real,
    refuse_full,
    write_folder,
)
from heddle.checkpoints.hf.peft import ADAPTER_CONFIG, base_of, is_adapter, load_adapter, save_adapter
from heddle.checkpoints.hf.special_tokens import roles_of
from heddle.checkpoints.hf.weights import WeightSource

__all__ = [
    "ADAPTER_CONFIG",
    "CONFIG",
    "GENERATION",
    "INDEX",
    "SINGLE",
    "WeightSource",
    "base_of",
    "config_in",
    "is_adapter",
    "is_folder",
    "load_adapter",
    "load_model",
    "load_weights",
    "read_config",
    "read_generation",
    "read_index",
    "read_ours",
    "real",
    "refuse_full",
    "roles_of",
    "save_adapter",
    "save_model",
    "write_folder",
]
