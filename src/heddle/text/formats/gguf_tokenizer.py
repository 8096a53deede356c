"""GGUF tokenizers (llama.cpp): tokens, scores, token types and merges from the header of a GGUF file."""

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer, models

from heddle.core import DataError, hint
from heddle.text.formats.bpe import byte_level_pipeline
from heddle.text.formats.imported import MAX_TOKENS, ImportedTokenizer, check_ids, check_merges, refuse_damaged
from heddle.text.formats.sentencepiece import CONTROL, OWN, merges_of
from heddle.text.formats.sentencepiece_pipelines import llama_pipeline
from heddle.text.formats.tokenizer_import import block_special_token_injection
from heddle.text.tokenizers import GPT4O, LLAMA3, QWEN2, SMOLLM, TEKKEN, byte_symbols

WHERE = "tokenizer.ggml"
# Pre-tokenization patterns, by the names in the files; None: GPT-2's.
PRETOKENIZERS: dict[str, str | None] = {
    **dict.fromkeys(("default", "gpt-2", "gpt2", "phi-2", "olmo", "mpt"), None),
    "smollm": SMOLLM,  # as llama.cpp and the makers have it; transformers takes GPT-2's for it
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "dbrx", "smaug-bpe", "pixtral", "falcon3", "lfm2"), LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), QWEN2),
    **dict.fromkeys(("gpt-4o", "llama4"), GPT4O),
    "tekken": TEKKEN,
}
# These take a whole pre-token if it is in the vocabulary, before any merge, and begin a text with BOS.
IGNORES_MERGES = ("llama-bpe", "llama3", "llama-v3", "pixtral", "falcon3", "lfm2", "tekken")
MODELS = ("gpt2", "llama")
NAMED = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",  # the format's own spelling
    "pad_token": "padding_token_id",
    "cls_token": "cls_token_id",
    "mask_token": "mask_token_id",
}


def read_gguf_tokenizer(keys: Mapping[str, Any]) -> ImportedTokenizer:
    """Return the tokenizer in the metadata of a GGUF file."""
    header = {key.removeprefix(f"{WHERE}."): value for key, value in keys.items() if key.startswith(f"{WHERE}.")}
    model = header.get("model")
    if model not in MODELS:
        raise DataError(f"{WHERE}.model: want one of {', '.join(MODELS)}, got {str(model)[:40]!r}")
    tokens = _texts(header, "tokens")
    with refuse_damaged(WHERE):
        pipeline = _byte_level_pipeline(tokens, header) if model == "gpt2" else _sentencepiece_pipeline(tokens, header)
        _add(pipeline, tokens, _kinds(header, len(tokens)))
        ids = _named_ids(header, len(tokens))
        known = {id: name for name, id in pipeline.get_vocab(with_added_tokens=True).items()}
        names = {key: known[id] for key, id in ids.items()}
        pipeline.add_special_tokens([AddedToken(n, special=True, normalized=False) for n in names.values()])
        block_special_token_injection(pipeline)
    template = keys.get("tokenizer.chat_template")
    return ImportedTokenizer(
        pipeline=pipeline,
        source=f"the header, {model} tokens",
        named=names,
        before=_id_if_flagged(
            header, "add_bos_token", model == "llama" or header.get("pre") in IGNORES_MERGES, ids.get("bos_token")
        ),
        after=_id_if_flagged(header, "add_eos_token", False, ids.get("eos_token")),
        template=template if isinstance(template, str) else None,
    )


def _byte_level_pipeline(tokens: list[str], header: Mapping[str, Any]) -> Tokenizer:
    """Return a byte-level pipeline; tokens outside the byte alphabet are translated to it."""
    table = byte_symbols()
    spelt = {byte: symbol for symbol, byte in table.items()}
    names = [t if table.keys() >= set(t) else "".join(spelt[byte] for byte in t.encode()) for t in tokens]
    halves = [merge.split(" ") for merge in _texts(header, "merges")]
    if any(len(pair) != 2 for pair in halves):
        raise DataError(f"{WHERE}.merges: want two tokens in each, separated by a space")
    vocab, merges = _numbered(names), [(pair[0], pair[1]) for pair in halves]
    check_merges(vocab, merges, f"{WHERE}.merges")
    pattern = _pretokenizer(header.get("pre", "default"))
    return byte_level_pipeline(
        models.BPE(vocab=vocab, merges=merges, ignore_merges=header.get("pre") in IGNORES_MERGES), pattern
    )


def _pretokenizer(name: object) -> str | None:
    if not isinstance(name, str) or name not in PRETOKENIZERS:
        near = hint(str(name), PRETOKENIZERS)
        raise DataError(f"{WHERE}.pre: want one of {', '.join(PRETOKENIZERS)}, got {str(name)[:40]!r}{near}")
    return PRETOKENIZERS[name]


def _sentencepiece_pipeline(tokens: list[str], header: Mapping[str, Any]) -> Tokenizer:
    """Return a SentencePiece pipeline, with merges in the order of scores."""
    vocab = _numbered(tokens)
    scores = header.get("scores")
    if not isinstance(scores, list | tuple) or len(scores) != len(tokens):
        raise DataError(f"{WHERE}.scores: want one for each of {len(tokens)} tokens")
    merges = merges_of(vocab, dict(zip(tokens, map(float, scores), strict=True)))
    return llama_pipeline(vocab, merges, _flag(header, "add_space_prefix", True))


def _add(pipeline: Tokenizer, tokens: list[str], kinds: list[int]) -> None:
    """Add special tokens and user-defined tokens."""
    known = pipeline.get_vocab()
    added = [(t, kind) for t, kind in zip(tokens, kinds, strict=True) if kind in (CONTROL, OWN) and t in known]
    pipeline.add_tokens([AddedToken(t, special=kind == CONTROL, normalized=False) for t, kind in added])


# --- metadata values --------------------------------------------------------------------------------------------------


def _texts(header: Mapping[str, Any], key: str) -> list[str]:
    found = header.get(key)
    if not isinstance(found, list | tuple) or not found or not all(isinstance(text, str) for text in found):
        raise DataError(f"{WHERE}.{key}: want a list of texts, got {str(found)[:40]}")
    if len(found) > MAX_TOKENS:
        raise DataError(f"{WHERE}.{key}: want at most {MAX_TOKENS}, got {len(found)}")
    return list(found)


def _numbered(names: list[str]) -> dict[str, int]:
    found = {name: id for id, name in enumerate(names)}
    if len(found) < len(names):
        raise DataError(f"{WHERE}.tokens: want each token once, got {len(names) - len(found)} again")
    return check_ids(found, WHERE)


def _kinds(header: Mapping[str, Any], count: int) -> list[int]:
    found = header.get("token_type")
    if found is None:
        return [1] * count
    if not isinstance(found, list | tuple) or len(found) != count:
        raise DataError(f"{WHERE}.token_type: want one for each of {count} tokens")
    return [int(kind) for kind in found]


def _flag(header: Mapping[str, Any], key: str, default: bool) -> bool:
    found = header.get(key, default)
    if not isinstance(found, bool):
        raise DataError(f"{WHERE}.{key}: want true or false, got {str(found)[:40]}")
    return found


def _named_ids(header: Mapping[str, Any], count: int) -> dict[str, int]:
    found = {key: header[name] for key, name in NAMED.items() if header.get(name) is not None}
    for key, id in found.items():
        if not isinstance(id, int) or isinstance(id, bool) or not 0 <= id < count:
            raise DataError(f"{WHERE}.{NAMED[key]}: want an id from 0 to {count - 1}, got {str(id)[:40]}")
    return found


def _id_if_flagged(header: Mapping[str, Any], key: str, default: bool, id: int | None) -> tuple[int, ...]:
    return (id,) if id is not None and _flag(header, key, default) else ()
