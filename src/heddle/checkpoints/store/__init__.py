"""Store: atomic checkpoints, verified by a manifest of checksums, and the run folder that holds them."""

from heddle.checkpoints.store.checkpoint import Checkpoint, average_checkpoints, open_checkpoint, verify
from heddle.checkpoints.store.config_format import (
    CONFIG_FORMAT,
    RENAMED,
    checksum_fits,
    migrate_config,
    renamed_keys,
    renamed_overrides,
    with_checksum,
)
from heddle.checkpoints.store.manifest import CONFIG, MANIFEST, FileDigest, check_weights
from heddle.checkpoints.store.run_folder import (
    CHECKPOINTS,
    RUNS,
    find_run,
    list_runs,
    load_checkpoint_model,
    load_config,
    missing_weights,
    model_config,
    newest_config,
    open_run,
    refuse_links,
    run_config_of,
)
from heddle.checkpoints.store.safetensors_io import (
    check_writable,
    get_tensor,
    open_regular_file,
    open_tensors,
    serialize,
)
from heddle.checkpoints.store.safetensors_reader import TensorFile
from heddle.checkpoints.store.snapshot import Snapshot
from heddle.checkpoints.store.store import LOOKS, Store, hold
