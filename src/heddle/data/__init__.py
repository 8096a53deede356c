"""Data: documents to batches. Sources and splits, checksummed shards, row plans, a loader resumed by one integer."""

from heddle.data import media, pictures, rows, shards, sources
