"""Shards: token ids on disk under checksums, prepared in one pass."""

from heddle.data.shards.prepare import Counting, Prepared, check_place, open_prepared, prepare
from heddle.data.shards.shard_writer import ShardWriter
from heddle.data.shards.shards import Shards

__all__ = ["Counting", "Prepared", "ShardWriter", "Shards", "check_place", "open_prepared", "prepare"]
