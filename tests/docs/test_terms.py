"""Whoever searches for the field's word finds it: each term is in the first docstring line of what does it."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "heddle"
TERMS = """
KV cache; prefill; gradient accumulation; truncated BPTT; quantization; speculative decoding; nucleus sampling; beam
search; sliding window; label smoothing; weight tying; load balancing; logits processor; constrained decoding;
contrastive search; top-k sampling; repetition penalty; minimum Bayes risk; scaled dot-product attention;
grouped-query attention; latent attention; cross-attention; rotary embedding; ALiBi; RMSNorm; gated linear unit;
mixture of experts; LoRA; activation checkpointing; moving average of weights; gradient clipping; learning-rate
warm-up; sequence packing; length bucketing; scheduled sampling; teacher forcing; byte-pair encoding; masked language
modelling; early stopping; adaptive softmax
"""


def first_lines(path: Path) -> Iterator[str]:
    """Yield the first docstring line of a module, its classes and its functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield (ast.get_docstring(node) or "").partition("\n")[0].lower()


@cache
def all_first_lines() -> list[str]:
    """Return all of them; packages only list what they have."""
    paths = sorted(path for path in SOURCE.rglob("*.py") if path.name != "__init__.py")
    return [line for path in paths for line in first_lines(path)]


@pytest.mark.parametrize("term", [" ".join(term.split()) for term in TERMS.split(";")])
def test_a_term_is_found(term: str) -> None:
    assert any(term.lower() in line for line in all_first_lines()), term


def test_there_are_forty_terms() -> None:
    assert len(set(TERMS.lower().split(";"))) == 40
