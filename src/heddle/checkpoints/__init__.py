"""Checkpoints: models on disk. An atomic, verified store of safetensors and JSON; Hugging Face, GGUF and PEFT files."""

from heddle.checkpoints import formats, hf, store
from heddle.checkpoints.base import (
    BASE,
    FROZEN_MODEL,
    BaseModel,
    BaseReference,
    FrozenModel,
    FrozenWeights,
    checksum,
    use_base,
    using_base,
)
from heddle.checkpoints.export import save_run, to_adapter, to_hugging_face, to_run
from heddle.checkpoints.pretrained_tokenizer import open_tokenizer
from heddle.checkpoints.source import RunSource, Source, find_source
from heddle.checkpoints.task_settings import summarization_settings, summary_prefix, translation_settings
