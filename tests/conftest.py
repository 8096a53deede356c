"""Shared test set-up: one thread, and shapes checked at run time in the rooms that carry tensors."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from jaxtyping import install_import_hook

install_import_hook(["heddle.nn", "heddle.models"], "beartype.beartype")
