"""Hugging Face: folders of theirs in and out, one small file for each family."""

from heddle.checkpoints.hf.convert import config_in, load_model, load_weights, save_model
from heddle.checkpoints.hf.folder import is_folder, read_config
from heddle.checkpoints.hf.peft import is_adapter, load_adapter, save_adapter
from heddle.checkpoints.hf.roles import roles_of

__all__ = [
    "config_in",
    "is_adapter",
    "is_folder",
    "load_adapter",
    "load_model",
    "load_weights",
    "read_config",
    "roles_of",
    "save_adapter",
    "save_model",
]
