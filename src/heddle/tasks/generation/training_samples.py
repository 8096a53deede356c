"""Training samples: what a model in training writes now and then, or how it translates a few held-out sources."""

from collections.abc import Callable
from functools import cache
from itertools import islice
from pathlib import Path

from heddle.core import UsageError
from heddle.data.shards import Shards, open_prepared
from heddle.data.sources import CorpusConfig, Document
from heddle.decoding.generation import GenerationConfig, MultinomialSampling, generate
from heddle.models.networks import AutoregressiveModel, Model, require
from heddle.tasks.generation.translate import translator
from heddle.tasks.scoring import with_special_tokens
from heddle.text.tokenizers import TOKENIZER, Tokenizer, load_tokenizer

TOKENS = 120
SOURCES = 3


def sample_writer(data: CorpusConfig, seed: int, folder: Path) -> Callable[[Model], str]:
    """Return a function that lets a model write a sample, with the tokenizer and the data of the run in a folder."""

    @cache
    def held_out() -> list[Document]:
        return _pairs(data, load_tokenizer(folder / TOKENIZER))

    def write(model: Model) -> str:
        tokenizer = load_tokenizer(folder / TOKENIZER)
        if model.reads_source:
            return _translations(model, tokenizer, held_out())
        refusal = UsageError(f"samples: {type(model).__name__} writes none")
        writer = require(model, AutoregressiveModel, refusal)
        choice = MultinomialSampling(temperature=0.8, top_k=50, seed=seed)
        generation = GenerationConfig(max_tokens=TOKENS, choice=choice)
        config = with_special_tokens(generation, tokenizer)
        return tokenizer.decode(generate(writer, [tokenizer.special_tokens.document_start], config)[0])

    return write


def _translations(model: Model, tokenizer: Tokenizer, pairs: list[Document]) -> str:
    pairs = [pair for pair in pairs if len(tokenizer.encode(pair.text)) < model.context]
    task = translator(model, tokenizer, GenerationConfig(max_tokens=TOKENS))
    written = task.run(" ".join(pair.text.split()) for pair in pairs)
    lines = [f"source  {p.text}\ntarget  {p.target}\nmodel   {text}" for p, text in zip(pairs, written, strict=True)]
    return "\n\n".join(lines)


def _pairs(data: CorpusConfig, tokenizer: Tokenizer) -> list[Document]:
    """Return the first held-out pairs as text; of prepared data, from their ids."""
    if data.prepared is None:
        return [pair for pair in islice(data.held_out(), SOURCES) if pair.target is not None]
    prepared = open_prepared(data.prepared)
    if prepared is None or not prepared.pairs:
        return []
    sides = [Shards.open(prepared.valid / name) for name in ("source", "target")]
    texts = [[tokenizer.decode(side.document(i)) for side in sides] for i in range(min(SOURCES, sides[0].count))]
    return [Document(source, "", target=target) for source, target in texts]
