"""Playground: a page at `/` that looks inside the served models, and the routes that it asks."""

from heddle.serving.http.playground.attention import attention
from heddle.serving.http.playground.capabilities import capabilities
from heddle.serving.http.playground.explain import divergence, explain, logits
from heddle.serving.http.playground.page import PAGE_PATHS, page, page_file
