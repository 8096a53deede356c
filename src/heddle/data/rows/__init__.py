"""Rows: sequence packing, streams, length-bucketed pairs, mixing, and the resumable loader of batches."""

from heddle.data.rows.examples import ExampleBatch, ExampleRows, check_examples
from heddle.data.rows.loader import Batch, Loader, Row, RowPlan, collate
from heddle.data.rows.measured_text import MeasuredText, measured_text
from heddle.data.rows.media import MediaRows
from heddle.data.rows.media_examples import MediaExampleRows
from heddle.data.rows.mixing import MixedPlan, apportion
from heddle.data.rows.packed import PackedRows
from heddle.data.rows.pairs import PairRows
from heddle.data.rows.plan import RowsConfig
from heddle.data.rows.preferences import PreferenceRows
from heddle.data.rows.row_noise import row_draws, row_generators
from heddle.data.rows.sentence_pairs import SentencePairBatch, SentencePairRows
from heddle.data.rows.streams import StreamRows
from heddle.data.rows.token_traits import TokenTraits, guessed_traits, token_traits
