"""Labelled shards: texts, second texts and labels of the same documents, each in shards of their own."""

from dataclasses import dataclass

from heddle.core import DamageError
from heddle.data.shards.label_sets import LabelSet
from heddle.data.shards.media_shards import MediaShards
from heddle.data.shards.prepare import Prepared
from heddle.data.shards.shards import Shards
from heddle.data.sources import Split
from heddle.text.tokenizers import Tokenizer


@dataclass(frozen=True)
class ExampleShards:
    """What shards of labelled texts have beside their tokens: labels, second texts, and the special tokens of a row."""

    label_set: LabelSet
    labels: Shards
    second: Shards | None
    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    segmented: bool = True  # whether segments mark the second text

    @property
    def special(self) -> int:
        """Count the special tokens of a row."""
        return len(self.before) + len(self.after) + (0 if self.second is None else len(self.between))


def open_split(prepared: Prepared, split: Split, verify: bool = True) -> tuple[Shards, Shards | None]:
    """Open one split of prepared data: its tokens, of pairs those of the targets and of the sources.

    Shards of labelled texts come with their `examples`, those of the texts of media with the `media`.
    """
    opened = [Shards.open(folder, verify) for folder in prepared.shard_folders(split)]
    if prepared.media is not None:
        opened[0].media = media = MediaShards(prepared.folder / split, prepared.media, verify)
        if (media.count, media.fingerprint) != (opened[0].count, opened[0].fingerprint):
            raise DamageError(f"{media.folder}: want arrays and texts of the same documents, found others")
    if prepared.pairs:
        return opened[1], opened[0]
    if prepared.labels is not None:
        second = opened[1] if prepared.second else None
        opened[0].examples = _examples(prepared, prepared.labels, split, second, verify)
        _check_aligned(opened[0], opened[0].examples)
    return opened[0], None


def _examples(prepared: Prepared, labels: LabelSet, split: Split, second: Shards | None, verify: bool) -> ExampleShards:
    tokenizer: Tokenizer = prepared.load_tokenizer()
    known = tokenizer.special_tokens
    stored = Shards.open(prepared.folder / split / "labels", verify)
    around = known.text.before, known.separator, known.text.after
    return ExampleShards(labels, stored, second, *around, known.segmented)


def _check_aligned(texts: Shards, examples: ExampleShards) -> None:
    for other in (examples.labels, examples.second):
        if other is not None and (other.count, other.fingerprint) != (texts.count, texts.fingerprint):
            raise DamageError(
                f"{other.folder}: want what belongs to {texts.folder}, document by document, found another"
            )
