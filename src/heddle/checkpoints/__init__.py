"""Checkpoints: disk <-> model. An atomic, verified store of safetensors and JSON under one manifest; no pickle."""

from heddle.checkpoints.average import average
from heddle.checkpoints.checkpoint import Checkpoint, open_checkpoint, verify
from heddle.checkpoints.export import to_adapter, to_hugging_face, to_run
from heddle.checkpoints.hf.folder import refuse_full
from heddle.checkpoints.manifest import CONFIG
from heddle.checkpoints.pickles import unpickle_folder
from heddle.checkpoints.run import CONFIG_FORMAT, config_of, find_run, migrated, open_run, runs_in
from heddle.checkpoints.snapshot import Snapshot
from heddle.checkpoints.source import RunSource, Source, find_source
from heddle.checkpoints.store import Damage, Entry, Store

__all__ = [
    "CONFIG",
    "CONFIG_FORMAT",
    "Checkpoint",
    "Damage",
    "Entry",
    "RunSource",
    "Snapshot",
    "Source",
    "Store",
    "average",
    "config_of",
    "find_run",
    "find_source",
    "migrated",
    "open_checkpoint",
    "open_run",
    "refuse_full",
    "runs_in",
    "to_adapter",
    "to_hugging_face",
    "to_run",
    "unpickle_folder",
    "verify",
]
