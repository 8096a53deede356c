"""Recipes: complete runs as small functions that return a RunConfig; no logic."""

from heddle.recipes.finetuning import finetune
from heddle.recipes.language_models import characters, first, gpt2, lstm, lstm_characters, speedrun
from heddle.recipes.translation import translate, translate_attention, translate_lstm
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
    "translate": translate,
    "translate_attention": translate_attention,
    "translate_lstm": translate_lstm,
}

__all__ = ["RECIPES", "RunConfig"]
