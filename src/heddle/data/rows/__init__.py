"""Rows: sequence packing, streams, length-bucketed pairs, mixing, and the resumable loader of batches."""

from heddle.data.rows.batch import Batch, Row, collate
from heddle.data.rows.loader import Loader
from heddle.data.rows.mixing import MixedPlan, apportion
from heddle.data.rows.pairs import PairRows
from heddle.data.rows.rows import PackedRows, RowPlan, RowsConfig, StreamRows
