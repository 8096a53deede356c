"""Recognition: sounds to texts, with n-best lists and error rates."""

from heddle.tasks.recognition.transcribe import (
    ErrorRates,
    FusedModel,
    TranscribeOptions,
    Transcriber,
    Transcription,
    Utterance,
    error_rates,
    features_of,
    transcriber,
)
