"""Recipes: complete runs as small functions that return a RunConfig; no logic."""

from collections.abc import Callable

from heddle.core import UsageError
from heddle.recipes.finetuning import finetune
from heddle.recipes.frozen_models import distill, dpo
from heddle.recipes.labelled import answer, classify, embed, similarity, tag
from heddle.recipes.language_models import characters, first, gpt2, lstm, lstm_characters, speedrun
from heddle.recipes.pictures import (
    caption,
    caption_lstm,
    caption_video,
    classify_images,
    transcribe_audio_visual,
)
from heddle.recipes.pretraining import bart, bert, electra, t5
from heddle.recipes.speech import transcribe, transcribe_ctc, transcribe_lstm
from heddle.recipes.translation import retrieve_and_edit, summarize, translate, translate_attention, translate_lstm
from heddle.recipes.word_language_models import awd_lstm, awd_lstm_sgd
from heddle.training import RunConfig

RECIPES = {
    "first": first,
    "characters": characters,
    "lstm_characters": lstm_characters,
    "lstm": lstm,
    "awd_lstm": awd_lstm,
    "awd_lstm_sgd": awd_lstm_sgd,
    "gpt2": gpt2,
    "speedrun": speedrun,
    "finetune": finetune,
    "bert": bert,
    "t5": t5,
    "bart": bart,
    "electra": electra,
    "distill": distill,
    "dpo": dpo,
    "translate": translate,
    "translate_attention": translate_attention,
    "translate_lstm": translate_lstm,
    "summarize": summarize,
    "retrieve_and_edit": retrieve_and_edit,
    "caption": caption,
    "caption_lstm": caption_lstm,
    "caption_video": caption_video,
    "classify_images": classify_images,
    "transcribe": transcribe,
    "transcribe_lstm": transcribe_lstm,
    "transcribe_ctc": transcribe_ctc,
    "transcribe_audio_visual": transcribe_audio_visual,
    "classify": classify,
    "tag": tag,
    "answer": answer,
    "similarity": similarity,
    "embed": embed,
}

__all__ = ["RECIPES", "RunConfig", "register_recipe"]

Recipe = Callable[[], RunConfig]


def register_recipe(make: Recipe) -> Recipe:
    """Register a recipe of your own by the name of its function; a decorator."""
    name = make.__name__
    if name in RECIPES and RECIPES[name].__module__.startswith("heddle."):
        raise UsageError(f"register_recipe: the library has a recipe called {name!r}; want another name")
    RECIPES[name] = make
    return make
