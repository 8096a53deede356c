"""Transcription: sounds with transcripts, graded by word and character error rate."""

from collections.abc import Sequence

from heddle.core import DataError
from heddle.data.sources import Document, DocumentCounter, MediaSource, source_for
from heddle.tasks.evaluation.registry import EvaluationTask, GradedModel, Metrics, register_task
from heddle.tasks.recognition import Utterance, error_rates, transcriber


@register_task
class TranscriptionTask(EvaluationTask):
    """Sounds of a folder or a manifest by their word and character error rate."""

    name = "transcribe"
    about = "sounds with transcripts, of a folder or a manifest (word and character error rate)"

    def examples(self, path: str) -> list[Document]:
        source = source_for(path)
        if not isinstance(source, MediaSource):
            raise DataError(f"{path}: want sounds with texts (a folder or a manifest), found {source.kind}")
        return list(source.documents(DocumentCounter()))

    def predict(self, graded: GradedModel, examples: Sequence[Document]) -> list[str]:
        task = transcriber(graded.model, graded.tokenizer, graded.settings, {})
        utterances = []
        for one in examples:
            assert one.media is not None
            source = task.source(str(one.media.path))
            utterances.append(Utterance(one.origin, source.open(one.media.path, one.media.start, one.media.length)))
        return [found.text for _, found in task.run(utterances)]

    def metrics(self, predictions: Sequence[str], examples: Sequence[Document]) -> Metrics:
        found = error_rates(predictions, [one.text for one in examples])
        return {"wer": found.wer, "cer": found.cer}
