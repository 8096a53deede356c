"""Writing by grammars: whether all is valid, and how much slower a token comes than without, at SmolLM2-135M's shape.

    python benchmarks/constrained_decoding.py [--cases 200] [--turns 12] [--tokens 24] [--rows 8] [--record]

A model of random weights writes by random JSON schemas and regular expressions (`tests/decoding/grammars.py`), with a
vocabulary learnt from Python's own library. For the time, the grammars are repeated without end, so that no row stops;
free and guided turns take turns, each with other grammars.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from entry_point import run_main
from results import record

from heddle.core import replace
from heddle.data.sources import BuiltinSource, DocumentCounter
from heddle.decoding.constraints import Constraint, GrammarConfig, LarkGrammar, RegexGrammar, SchemaGrammar
from heddle.decoding.generation import GenerationConfig, MultinomialSampling, complete
from heddle.decoding.runtime import FinishReason, Request
from heddle.decoding.sampling import PenaltyConfig
from heddle.models.networks import AutoregressiveModel
from heddle.models.presets import build
from heddle.tasks.generation import ConstraintCompiler, TextConstraints
from heddle.text.tokenizers import BpeTokenizer, Tokenizer

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from decoding.grammars import obeys, random_grammar

VOCAB = 49_152
CLOSING = '"}],'  # liked by the model of random weights, which would else write numbers of any length
LIKED = 4.0
LONGEST = 400


def made() -> tuple[AutoregressiveModel, Tokenizer]:
    """Return a model of SmolLM2-135M's shape, and a tokenizer of its size."""
    texts = (document.text for document in BuiltinSource().documents(DocumentCounter()))
    tokenizer = BpeTokenizer(vocab=VOCAB).train(texts)
    model = build("llama", layers=30, width=576, heads=9, kv_heads=3, hidden=1536, vocab=VOCAB, tied=True)
    assert isinstance(model, AutoregressiveModel)
    return model.eval(), tokenizer


def write(
    model: AutoregressiveModel, constraints: Sequence[Constraint | None], how: GenerationConfig, end: int
) -> list[tuple[list[int], FinishReason]]:
    """Let every constraint's row begin a document."""
    found = complete(model, [Request([end], constraint=constraint) for constraint in constraints], how)
    return [(row.ids, row.reason) for row in found]


def validity(model: AutoregressiveModel, tokenizer: Tokenizer, cases: int, rows: int) -> dict[str, float]:
    """Count how many rows obey their grammar, and how many did not come to an end."""
    compiler, valid, whole, compiling = ConstraintCompiler(tokenizer), 0, 0, list[float]()
    liked = tuple((id, LIKED) for id in [*(tokenizer.encode(mark)[0] for mark in CLOSING), tokenizer.end])
    how = GenerationConfig(max_tokens=LONGEST, stop=(tokenizer.end,), penalties=PenaltyConfig(bias=liked))
    tokens = 0
    for first in range(0, cases, rows):
        grammars = [random_grammar(seed) for seed in range(first, min(cases, first + rows))]
        start = time.perf_counter()
        constraints = [compiler.compile(TextConstraints(grammar=grammar)).begin() for grammar in grammars]
        compiling.append((time.perf_counter() - start) / len(grammars))
        for grammar, (ids, reason) in zip(
            grammars,
            write(model, constraints, replace(how, strategy=MultinomialSampling(seed=first)), tokenizer.end),
            strict=True,
        ):
            whole += reason is FinishReason.STOP
            good = reason is FinishReason.STOP and obeys(tokenizer.decode(ids), grammar)
            valid += good
            tokens += len(ids)
            if not good:
                print(f"{reason}: {grammar}: {tokenizer.decode(ids)!r}")
        print(f"{valid}/{first + len(grammars)} valid", flush=True)
    return {
        "cases": cases,
        "valid": valid,
        "ended": whole,
        "tokens": tokens,
        "compile_ms": round(statistics.median(compiling) * 1e3, 2),
    }


def endless(grammar: GrammarConfig) -> GrammarConfig:
    """Return a grammar that wants the same again and again."""
    if isinstance(grammar, RegexGrammar):
        line = RegexGrammar(pattern=f"(?:{grammar.pattern})\n").rules()
        return LarkGrammar(text=line.replace("start: TEXT", "start: TEXT{1000}"))
    assert isinstance(grammar, SchemaGrammar)
    schema = json.loads(grammar.schema)
    named = {"$defs": schema.pop("$defs")} if "$defs" in schema else {}
    return SchemaGrammar(schema=json.dumps({"type": "array", "items": schema, "minItems": 1000} | named))


def slowdown(model: AutoregressiveModel, tokenizer: Tokenizer, turns: int, tokens: int, rows: int) -> dict[str, float]:
    """Time free and guided rows in turns."""
    compiler, times = ConstraintCompiler(tokenizer), {"free": list[float](), "guided": list[float]()}
    work = {"free": list[float](), "guided": list[float]()}
    for turn in range(turns + 1):
        seeds = range(1000 + turn * rows, 1000 + (turn + 1) * rows)
        constraints = [
            compiler.compile(TextConstraints(grammar=endless(random_grammar(seed)))).begin() for seed in seeds
        ]
        for kind in ("free", "guided") if turn % 2 else ("guided", "free"):
            how = GenerationConfig(max_tokens=tokens, strategy=MultinomialSampling(seed=turn))
            chosen: list[Constraint | None] = [None] * rows if kind == "free" else list(constraints)
            start, used = time.perf_counter(), time.process_time()
            found = write(model, chosen, how, tokenizer.end)
            spent = time.perf_counter() - start, time.process_time() - used
            assert all(len(ids) == tokens for ids, _ in found)
            if turn:  # the first warms up
                times[kind].append(spent[0] / tokens)
                work[kind].append(spent[1] / tokens)
    pairs = zip(times["guided"], times["free"], strict=True)
    return {
        "free_ms": round(statistics.median(times["free"]) * 1e3, 2),
        "guided_ms": round(statistics.median(times["guided"]) * 1e3, 2),
        "slower": round(statistics.median(g / f for g, f in pairs) - 1, 4),
        "slower_cpu": round(sum(work["guided"]) / sum(work["free"]) - 1, 4),
    }


def main() -> None:
    """Measure, print, and with --record append to the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    model, tokenizer = made()
    speed = slowdown(model, tokenizer, args.turns, args.tokens, args.rows) if args.turns else {}
    print(json.dumps(speed), flush=True)
    found = validity(model, tokenizer, args.cases, args.rows) | speed
    found |= {"rows": args.rows, "threads": torch.get_num_threads()}
    print(json.dumps(found))
    if args.record:
        record("constrained", **found)


if __name__ == "__main__":
    run_main(main)
