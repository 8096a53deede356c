"""Shards: token ids on disk under checksums, prepared in one pass."""

from heddle.data.shards.label_sets import (
    AnswerSet,
    ClassSet,
    LabelSet,
    NoLabels,
    RowTargets,
    ScoreSet,
    TagSet,
    TextWindow,
    find_labels,
    first_tokens,
    text_windows,
    token_range,
)
from heddle.data.shards.labelled import ExampleShards, open_split
from heddle.data.shards.media_shards import MediaShards, MediaWriter
from heddle.data.shards.prepare import Prepared, ProgressCallback, check_target, open_prepared, prepare
from heddle.data.shards.shard_writer import ShardWriter
from heddle.data.shards.shards import Shards
from heddle.data.shards.teacher_outputs import (
    Precision,
    TeacherOutput,
    TeacherOutputs,
    TeacherOutputsManifest,
    TeacherOutputsWriter,
    has_outputs,
    key_of,
    read_outputs_manifest,
)
