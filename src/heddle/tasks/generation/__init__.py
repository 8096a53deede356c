"""Text generation: completion, chat, translation, summarization, constrained decoding and stop strings."""

from heddle.tasks.generation.caption import (
    CAPTION_BEAMS,
    Caption,
    Captioner,
    CaptionGrades,
    exact_matches,
    grade_captions,
)
from heddle.tasks.generation.chat import Conversation, chat_template, conversation
from heddle.tasks.generation.model_settings import TaskSettings, translation_settings_of
from heddle.tasks.generation.stop_strings import StopStrings, check_stop_strings
from heddle.tasks.generation.summarize import Summarizer, Summary, merged, summarizer
from heddle.tasks.generation.text_constraints import ConstraintCompiler, TextConstraints, make_constraints
from heddle.tasks.generation.text_generation import GeneratedText, TextChunk, TextGenerator, text_generator
from heddle.tasks.generation.training_samples import sample_writer
from heddle.tasks.generation.translate import (
    BEAMS,
    CandidateRanking,
    MinimumBayesRisk,
    SearchOrder,
    Translation,
    Translator,
    bleu_metric,
    bleu_score,
    length_limits,
    own_translator,
    translator,
)
