"""Captions of images and of video by an encoder-decoder, graded by BLEU-4, CIDEr-D and exact match."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from heddle.core import DataError, UsageError
from heddle.decoding import GenerationOptions, generation_config
from heddle.models.networks import Model
from heddle.tasks.generation.translate import Translation, Translator, translator
from heddle.tasks.inputs import MediaInput, MediaInputs
from heddle.tasks.metrics import caption_words, consensus_scores, sacrebleu_for
from heddle.text.tokenizers import Tokenizer

CAPTION_BEAMS, MAX_TOKENS = 4, 64


NOTHING = Translation()


@dataclass(frozen=True)
class Caption:
    """What a model writes to a medium, best candidate first; or, in one line, why it could not be read."""

    input: MediaInput
    candidates: Translation = NOTHING
    error: str | None = None

    @property
    def text(self) -> str:
        """Return the best caption."""
        return self.candidates.text


@dataclass(frozen=True)
class Captioner:
    """A model with what it needs to describe files."""

    inputs: MediaInputs
    task: Translator

    @classmethod
    def of(
        cls, model: Model, tokenizer: Tokenizer, inputs: MediaInputs, options: GenerationOptions, batch: int = 32
    ) -> "Captioner":
        """Return a captioner; refuse a model that writes nothing to what it sees."""
        if not model.reads_source or model.reads == "ids":
            raise UsageError(f"caption: want a model of images or video with captions; this is {model.config.noun}")
        given = {name: value for name, value in options.items() if value is not None}
        defaults: GenerationOptions = {"beams": CAPTION_BEAMS, "length_penalty": 1.0, "max_tokens": MAX_TOKENS}
        if given.get("beams", CAPTION_BEAMS) == 1:
            del defaults["length_penalty"]
        config = generation_config({**defaults, **given})  # type: ignore[typeddict-item]
        return cls(inputs, translator(model, tokenizer, config, batch))

    def run(self, several: Iterable[MediaInput]) -> Iterator[Caption]:
        """Yield a caption for each medium, in order; one that cannot be read has its error instead."""
        for batch in self.inputs.batches(list(several), self.task.batch):
            errors: dict[int, str] = {}
            sources = []
            for number, one in enumerate(batch):
                try:
                    sources.append(self.inputs.read(one))
                except DataError as error:
                    errors[number] = str(error)
            found = iter(self.task.translate(sources))
            for number, one in enumerate(batch):
                yield Caption(one, error=errors[number]) if number in errors else Caption(one, next(found))


@dataclass(frozen=True)
class CaptionGrades:
    """BLEU-4 and CIDEr-D of captions, and the share that equals a reference word by word, all in per cent but CIDEr."""

    bleu: float
    cider: float
    exact_match: float
    signature: str


def exact_matches(captions: Sequence[str], references: Sequence[Sequence[str]]) -> list[bool]:
    """Tell which captions equal one of their references, but for letter case and punctuation."""
    return [
        caption_words(text) in [caption_words(one) for one in several]
        for text, several in zip(captions, references, strict=True)
    ]


def grade_captions(captions: Sequence[str], references: Sequence[Sequence[str]]) -> CaptionGrades:
    """Return the grades of captions against any number of references each."""
    cider = consensus_scores(captions, references)  # checks that there are references
    most = max(map(len, references))
    streams = [[several[n] if n < len(several) else None for several in references] for n in range(most)]
    metric = sacrebleu_for("grading captions")(lowercase=True)
    bleu = metric.corpus_score(list(captions), streams)
    exact = exact_matches(captions, references)
    signature = str(metric.get_signature())
    return CaptionGrades(float(bleu.score), sum(cider) / len(cider), 100 * sum(exact) / len(exact), signature)
