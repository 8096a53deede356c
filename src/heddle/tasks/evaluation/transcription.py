"""Transcription: sounds with transcripts, graded by word and character error rate."""

from collections.abc import Sequence

from heddle.core import DataError, UsageError
from heddle.tasks.evaluation.registry import EvaluationTask, GradedModel, Metrics, register_task
from heddle.tasks.recognition import Transcriber, Utterance, error_rates, transcriber


@register_task
class TranscriptionTask(EvaluationTask):
    """Sounds of a folder or a manifest by their word and character error rate."""

    name = "transcribe"
    about = "sounds with transcripts, of a folder or a manifest (word and character error rate)"

    def examples(self, path: str) -> list[Utterance]:
        raise UsageError(f"{path}: want a model, because its training tells how sounds are read; use run_task")

    def _examples_for(self, graded: GradedModel, path: str) -> list[Utterance]:
        """Return the sounds, read as in training, with their texts; refuse one without."""
        found = list(_transcriber(graded).utterances([path]))
        for one in found:
            if one.reference is None:
                raise DataError(f"{path}: want a text for each sound, found none for {one.name}")
        return found

    def predict(self, graded: GradedModel, examples: Sequence[Utterance]) -> list[str]:
        texts = []
        for one, found in _transcriber(graded).run(examples):
            if found.fault is not None:
                raise DataError(f"{one.name}: want a sound that can be read, found {found.fault}")
            texts.append(found.text)
        return texts

    def metrics(self, predictions: Sequence[str], examples: Sequence[Utterance]) -> Metrics:
        found = error_rates(predictions, [one.reference or "" for one in examples])
        return {"wer": found.wer, "cer": found.cer}


def _transcriber(graded: GradedModel) -> Transcriber:
    return transcriber(graded.model, graded.tokenizer, graded.settings, {})
