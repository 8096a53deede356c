"""Vocabulary transfer: which tokens of an old vocabulary each token of a new one is made of (Gee et al. 2022, FVT)."""

import json
from collections.abc import Callable
from typing import Any

from heddle.core import UsageError
from heddle.text.tokenizers.special_tokens import SpecialTokens
from heddle.text.tokenizers.token_bytes import token_bytes_of
from heddle.text.tokenizers.tokenizer import Pipeline, Tokenizer

Pieces = tuple[int, ...]


def old_pieces(old: Tokenizer, new: Tokenizer) -> list[Pieces]:
    """Return for each new id the old ids that it stands for; none where the old vocabulary has nothing of it.

    A special token stands for the one of its name, or else of its purpose. A token that adds the same bytes to a text
    is the same token, whatever the kind of tokenizer; any other one is divided as the old tokenizer divides it, or,
    where the two are of different kinds, into the longest old tokens.
    """
    known, special = _by_bytes(old), _special_pieces(old, new)
    same_kind = old.decoder() == new.decoder()
    divide = _divider(old) if same_kind else None
    names = {name: id for id, name in enumerate(old.names()) if same_kind and name not in old.special}
    found: list[Pieces] = []
    for id, (name, added) in enumerate(zip(new.names(), _bytes(new), strict=True)):
        if id in special or name is None or name in new.special:
            found.append(special.get(id, ()))
        elif name in names:
            found.append((names[name],))
        elif added in known:
            found.append((known[added],))
        else:
            pieces = [] if divide is None else [token.id for token in divide(name)]
            found.append(tuple(id for id in pieces if id != old.unknown) or _longest(added, known))
    return found


def _divider(old: Tokenizer) -> Callable[[str], list[Any]] | None:
    """Return what divides the name of a token into tokens; None: the model does so inside whole words only."""
    data = old.to_json()
    model: Any = data["model"]
    return Pipeline.from_str(json.dumps(data)).model.tokenize if model["type"] in ("BPE", "Unigram") else None


def _special_pieces(old: Tokenizer, new: Tokenizer) -> dict[int, Pieces]:
    """Return the old id of each special token, by its name, or else by its purpose."""
    before, after = _by_purpose(old.special_tokens), _by_purpose(new.special_tokens)
    found: dict[int, Pieces] = {id: (before[purpose],) for purpose, id in reversed(after.items()) if purpose in before}
    if old.unknown is not None and new.unknown is not None:
        found[new.unknown] = (old.unknown,)
    return found | {id: (old.special[name],) for name, id in new.special.items() if name in old.special}


def _by_purpose(known: SpecialTokens) -> dict[str, int]:
    """Return the special tokens by their purpose, the most telling first."""
    named = {"mask": known.mask, "end": known.end, "begin": known.begin, "pad": known.pad}
    templates = {"text.before": known.text.before, "text.after": known.text.after, "target": known.target}
    ends = {f"{name}.{place}": id for name, ids in templates.items() for place, id in enumerate(ids)}
    return {name: id for name, id in (named | ends).items() if id is not None}


def _bytes(tokenizer: Tokenizer) -> tuple[bytes, ...]:
    """Return what each id adds to a text."""
    try:
        return token_bytes_of(tokenizer).inside
    except UsageError:  # a decoder of another library
        return tuple(tokenizer.token(id).encode() for id in range(tokenizer.vocab))


def _by_bytes(tokenizer: Tokenizer) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    for id, (name, added) in enumerate(zip(tokenizer.names(), _bytes(tokenizer), strict=True)):
        if added and name is not None and name not in tokenizer.special and id != tokenizer.unknown:
            found.setdefault(added, id)
    return found


def _longest(added: bytes, known: dict[bytes, int]) -> Pieces:
    """Divide bytes into the longest known tokens, from the left, as WordPiece does; what is not known is left out."""
    found: list[int] = []
    at = 0
    while at < len(added):
        ends = range(len(added), at, -1)
        end = next((end for end in ends if added[at:end] in known), None)
        if end is not None:
            found.append(known[added[at:end]])
        at = at + 1 if end is None else end
    return tuple(found)
