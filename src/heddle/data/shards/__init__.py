"""Shards: token ids on disk under checksums, prepared in one pass."""

from heddle.data.shards.prepare import Prepared, ProgressCallback, check_target, open_prepared, prepare
from heddle.data.shards.shard_writer import ShardWriter
from heddle.data.shards.shards import Shards
