"""Explain: look inside a model: probabilities, attention, gates, logit lens, experts, attribution, beams, traces."""

from heddle.explain.explain import explain
from heddle.explain.explanation import Explanation
from heddle.explain.options import DEFAULT, WHATS, ExplainFields, ExplainOptions, explain_options
