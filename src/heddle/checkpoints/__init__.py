"""Checkpoints: disk <-> model. An atomic, verified store of safetensors and JSON under one manifest; no pickle."""

from heddle.checkpoints import formats, hf, store
from heddle.checkpoints.export import to_adapter, to_hugging_face, to_run
from heddle.checkpoints.source import RunSource, Source, find_source
