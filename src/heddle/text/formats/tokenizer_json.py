"""tokenizer.json: the file format of the `tokenizers` library, checked before it is loaded."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from heddle.core import DataError
from heddle.core.system import parse_json
from heddle.text.formats.default_special_tokens import NAMED
from heddle.text.formats.imported import MAX_TOKENS, TokenizerSpec, check_ids, check_merges, read_utf8, refuse_damaged
from heddle.text.formats.tokenizer_config import TokenizerSettings
from heddle.text.tokenizers import TOKENIZER, check_expansion


def read_tokenizer_json(folder: Path, settings: TokenizerSettings) -> TokenizerSpec | None:
    """Read a tokenizer.json; None: there is no such file."""
    path = folder / TOKENIZER
    if not path.is_file():
        return None
    text = read_utf8(path)
    data = parse_json(text, str(path))
    if not isinstance(data, dict) or not isinstance(data.get("model"), dict):
        raise DataError(f"{path}: not a tokenizer: it has no model")
    _check_model(data["model"], str(path))
    check_expansion(data, str(path))
    with refuse_damaged(str(path)):
        pipeline = Tokenizer.from_str(text)
        pipeline.no_padding()
        pipeline.no_truncation()
        known = pipeline.get_vocab(with_added_tokens=True)
    if not known or max(known.values()) >= MAX_TOKENS:
        raise DataError(
            f"{path}: want tokens with ids from 0 to {MAX_TOKENS - 1}, got {max(known.values(), default='none')}"
        )
    for added in data.get("added_tokens") or []:
        if known.get(added["content"]) != added["id"]:
            raise DataError(f"{path}: added token {added['content'][:40]!r}: want id {known.get(added['content'])}")
    return TokenizerSpec(pipeline, TOKENIZER, str(path), NAMED.get(settings.kind, {}), own=True)


def _check_model(model: Mapping[str, Any], where: str) -> None:
    """Refuse wrong ids and merges, which the library accepts or panics at."""
    vocab, merges = model.get("vocab"), model.get("merges")
    if not isinstance(vocab, dict):
        return
    known = check_ids(vocab, where)
    if isinstance(merges, list) and not model.get("continuing_subword_prefix"):
        pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
        whole = [(pair[0], pair[1]) for pair in pairs if isinstance(pair, list) and len(pair) == 2]
        check_merges(known, (pair for pair in whole if all(isinstance(half, str) for half in pair)), where)
