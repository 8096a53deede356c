"""Explain: look inside a model: probabilities, attention, gates, logit lens, experts, attribution, beams, traces."""

from heddle.explain.display import Explanation
from heddle.explain.explain import explain
from heddle.explain.inputs import DEFAULT, WHATS, ExplainFields, ExplainOptions, explain_options
from heddle.explain.observers import AttentionThumbnails, attention_of_head, attention_thumbnails
from heddle.explain.places import NextTokens, PlaceLogits, kl_divergences, next_tokens, place_logits
