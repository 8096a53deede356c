"""Hugging Face: folders of theirs in and out, one small file for each family."""

from heddle.checkpoints.hf.convert import load_model, load_weights, save_model
from heddle.checkpoints.hf.folder import is_folder

__all__ = ["is_folder", "load_model", "load_weights", "save_model"]
