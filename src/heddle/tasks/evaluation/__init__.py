"""Evaluation: tasks that a model is graded on by name, the library's and the user's own, with bootstrap intervals."""

from heddle.tasks.evaluation.choices import DialogueTask, NextSentenceTask, ReplyChoice, SentencePair
from heddle.tasks.evaluation.labelled import AnswerTask, ClassifyTask, SummarizeTask, TagTask, read_documents
from heddle.tasks.evaluation.masked_words import HiddenWords, MaskedWordsTask, hide_words
from heddle.tasks.evaluation.minimal_pairs import BlimpTask, MinimalPair
from heddle.tasks.evaluation.passkey import (
    PasskeyExample,
    answer_passkeys,
    passkey_examples,
    passkey_metrics,
    passkey_text,
)
from heddle.tasks.evaluation.reading_times import NaturalStoriesTask, ReadWord, cross_validated_gains, in_sentences
from heddle.tasks.evaluation.registry import (
    TASKS,
    EvaluationTask,
    GradedModel,
    TaskResult,
    bootstrap_intervals,
    register_task,
    run_task,
    task_named,
)
from heddle.tasks.evaluation.transcription import TranscriptionTask
from heddle.tasks.evaluation.web_questions import WebQuestionsTask
