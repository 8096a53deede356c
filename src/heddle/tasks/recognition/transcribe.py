"""Speech recognition: sounds to texts with their n-best lists, by any model of frames; graded by WER and CER."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray

from heddle.core import ConfigError, DataError, UsageError, decode, replace
from heddle.data.files import SkipReason, file_extension, printable_path
from heddle.data.media import FeaturesConfig, Media, MediaFault
from heddle.data.sources import ArraySource, DocumentCounter, MediaSource, SoundSource, SourceConfig
from heddle.decoding.ctc import JointBeamSearch, PrefixBeamSearch, Recognized, Recognizer, SearchKind, ctc_output
from heddle.models.networks import LanguageModel, Model, require
from heddle.tasks.metrics import edit_distance
from heddle.tasks.rescoring import NBestCandidate
from heddle.text.tokenizers import Tokenizer

AHEAD = 8  # batches decoded before any is recognized, so that sounds of similar length share a batch
MANIFESTS = (".jsonl", ".ndjson", ".tsv")
READERS: dict[str, type[SoundSource | ArraySource]] = {"sound": SoundSource, "array": ArraySource}


class TranscribeOptions(TypedDict, total=False):
    """How a sound is recognized; both weights are 0.3 where they are not given.

    beams: candidates kept while searching; 1 and no language model: the best path of CTC, or greedy search.
    ctc_weight: weight of CTC against attention, of a model that has both.
    lm_weight: weight of the language model.
    length_bonus: added to a candidate's score for each token.
    max_tokens: most tokens of a text.
    """

    beams: int
    ctc_weight: float
    lm_weight: float
    length_bonus: float
    max_tokens: int


@dataclass(frozen=True)
class Utterance:
    """One sound to transcribe: what messages call it, where it is, and its transcript where there is one."""

    name: str
    media: Media
    reference: str | None = None


@dataclass(frozen=True)
class Transcription:
    """The candidates for one sound, best first; of one that cannot be used, why."""

    name: str
    candidates: tuple[NBestCandidate, ...] = ()
    fault: str | None = None

    @property
    def text(self) -> str:
        """Return the best candidate."""
        return self.candidates[0].text if self.candidates else ""


@dataclass(frozen=True)
class ErrorRates:
    """Word and character error rate in per cent, and what they were counted over."""

    wer: float
    cer: float
    words: int
    sounds: int


@dataclass(frozen=True)
class Transcriber:
    """A recognizer with the features that its model reads and the tokenizer that its tokens belong to."""

    recognizer: Recognizer
    features: FeaturesConfig
    tokenizer: Tokenizer
    batch: int = 16
    trained_on: MediaSource | None = None  # of a model of video: where its data came from

    def utterances(self, paths: Iterable[str | Path]) -> Iterator[Utterance]:
        """Yield the sounds that paths mean: files, folders, or manifests; a text beside a file is its reference."""
        for path in map(str, paths):
            here = Path(path).expanduser()
            if here.is_dir() or file_extension(here).lower() in MANIFESTS:
                yield from self._of_source(path)
            else:
                yield Utterance(path, self.source(path).open(here, 0.0, None))

    def source(self, path: str) -> MediaSource:
        """Return the source of a folder or a manifest, which also opens single files."""
        if self.trained_on is not None:
            return replace(self.trained_on, path=path, split=None)
        plain: dict[str, Any] = {"path": path}
        if self.features.medium == "sound":
            plain |= {"sample_rate": self.features.media_rate, "longest": 3600.0}
        return decode(READERS[self.features.medium], plain)

    def _of_source(self, path: str) -> Iterator[Utterance]:
        source, counter = self.source(path), DocumentCounter()
        for entry in source.entries(counter):
            part = f" from {entry.start:g}" if entry.start else ""
            reference = None if isinstance(entry.text, SkipReason) else entry.text
            yield Utterance(
                printable_path(entry.path) + part, source.open(entry.path, entry.start, entry.length), reference
            )

    def run(self, utterances: Iterable[Utterance]) -> Iterator[tuple[Utterance, Transcription]]:
        """Yield each sound with its transcription, in order."""
        waiting = iter(utterances)
        while gathered := list(islice(waiting, self.batch * AHEAD)):
            yield from zip(gathered, self.transcribe(gathered), strict=True)

    def transcribe(self, utterances: Sequence[Utterance]) -> list[Transcription]:
        """Return the transcription of each sound, those of similar length in one batch."""
        found = [Transcription(one.name) for one in utterances]
        features: dict[int, torch.Tensor] = {}
        for number, one in enumerate(utterances):
            try:
                features[number] = torch.from_numpy(self.read(one.media))
            except MediaFault as fault:
                words = f" ({fault.words})" if fault.words and fault.words != one.name else ""
                found[number] = Transcription(one.name, fault=f"{fault.reason.replace('_', ' ')}{words}")
        order = sorted(features, key=lambda number: len(features[number]))
        for start in range(0, len(order), self.batch):
            chosen = order[start : start + self.batch]
            for number, each in zip(chosen, self.recognizer.run([features[n] for n in chosen]), strict=True):
                found[number] = Transcription(found[number].name, tuple(map(self._candidate, each)))
        return found

    def read(self, media: Media) -> NDArray[np.float32]:
        """Return the features of a medium."""
        array = media.decode()
        try:
            self.features.count(array.shape)
        except ConfigError as error:
            raise UsageError(f"{media.path}: {error}") from None
        return self.features.compute(array)

    def _candidate(self, found: Recognized) -> NBestCandidate:
        text = " ".join(self.tokenizer.decode(list(found.ids)).split())
        return NBestCandidate(text, {"score": found.score, **found.scores})


def features_of(settings: Mapping[str, Any]) -> FeaturesConfig:
    """Return the features that a model was trained on, from the settings that were saved with it."""
    rows = settings.get("rows")
    if not isinstance(rows, Mapping) or "features" not in rows:
        raise UsageError("transcribe: want a model that was trained on sounds (rows.kind=media); this one was not")
    return decode(FeaturesConfig, rows["features"])


@dataclass(frozen=True)
class FusedModel:
    """A language model for shallow fusion, with its tokenizer."""

    model: Model
    tokenizer: Tokenizer


def transcriber(
    model: Model,
    tokenizer: Tokenizer,
    settings: Mapping[str, Any],
    options: TranscribeOptions,
    fused: FusedModel | None = None,
    batch: int = 16,
) -> Transcriber:
    """Return a transcriber of a model; refuse one that reads no frames, and options that it cannot follow."""
    if model.reads not in ("frames", "video"):
        raise UsageError(f"transcribe: want a model that reads sounds, got one that reads {model.reads}")
    if batch < 1:
        raise UsageError(f"batch: want at least 1, got {batch}")
    features, known = features_of(settings), tokenizer.special_tokens
    search, lm = search_for(model, options, fused is not None), None
    start: tuple[int, ...] = ()
    if fused is not None:
        refusal = UsageError(f"lm: want a language model, got {fused.model.config.noun}")
        lm, start = require(fused.model, LanguageModel, refusal), tuple(fused.tokenizer.special_tokens.document_start)
        if fused.tokenizer.fingerprint != tokenizer.fingerprint:
            raise UsageError("lm: want a language model with the tokenizer of the recognizer, got one with another")
    recognizer = Recognizer(model, search, tuple(known.decoder_start), tokenizer.end, lm, start)
    return Transcriber(recognizer, features, tokenizer, batch, _video_source(features, settings))


def _video_source(features: FeaturesConfig, settings: Mapping[str, Any]) -> MediaSource | None:
    """Return the source of a model of speech in video, or of a mouth alone; None: it reads sounds or arrays."""
    if features.medium in READERS:
        return None
    found = decode(SourceConfig, settings["data"]["sources"][0])
    if not isinstance(found, MediaSource):
        raise UsageError(f"transcribe: want a model that was trained on files, got one on {found.kind}")
    return found


def search_for(model: Model, options: TranscribeOptions, fused: bool) -> SearchKind:
    """Return the search that suits a model: over tokens where it has a decoder, else over the frames of CTC."""
    given: dict[str, Any] = dict(options)
    has_ctc = ctc_output(model) is not None
    if not fused and given.get("lm_weight"):
        raise UsageError("lm_weight: want a language model beside it (lm), got none")
    lm_weight = given.pop("lm_weight", None)
    given |= {"lm_weight": (0.3 if lm_weight is None else lm_weight) if fused else 0.0}
    if not model.reads_source:
        for name in ("ctc_weight", "max_tokens"):
            if name in given:
                raise UsageError(f"{name}: only used by a model with a decoder; this one has CTC alone")
        if given.get("beams") == 1 and not fused:
            return None
        return decode(PrefixBeamSearch, given)
    if given.get("ctc_weight") and not has_ctc:
        raise UsageError("ctc_weight: want 0, because the model has no CTC output")
    return decode(JointBeamSearch, {"ctc_weight": 0.3 if has_ctc else 0.0} | given)


def error_rates(texts: Sequence[str], references: Sequence[str]) -> ErrorRates:
    """Return word and character error rate, as jiwer counts them: edits over all texts by the size of the references.

    Runs of spaces count as one, those at the ends not at all.
    """
    if not references or len(texts) != len(references):
        raise DataError(f"references: want one for each of {len(texts)} sounds, found {len(references)}")
    pairs = [(text.split(), reference.split()) for text, reference in zip(texts, references, strict=True)]
    words = sum(len(right) for _, right in pairs)
    letters = sum(len(" ".join(right)) for _, right in pairs)
    word_edits = sum(edit_distance(left, right) for left, right in pairs)
    letter_edits = sum(edit_distance(list(" ".join(left)), list(" ".join(right))) for left, right in pairs)
    return ErrorRates(100 * word_edits / max(1, words), 100 * letter_edits / max(1, letters), words, len(pairs))
