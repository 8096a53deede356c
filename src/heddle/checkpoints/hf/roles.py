"""Roles there: which ids begin and end texts, as tokenizer, config and settings of generation tell together."""

from collections.abc import Mapping
from typing import Any

from heddle.core import ConfigError
from heddle.text import Found, Frame, Roles

MOST = 1000  # ids in a list


def roles_of(found: Found | None, config: Mapping[str, Any], generation: Mapping[str, Any]) -> Roles | None:
    """Return which ids do what, or None where nothing says what ends a text.

    What stands first counts: the settings of generation, then the config, and of names the tokenizer's own.
    """
    told = {**config, **{key: value for key, value in generation.items() if value is not None}}
    named = {} if found is None else _named(found)
    ends = _ids(told, "eos_token_id")
    end = named.get("eos_token", ends[0] if ends else named.get("sep_token"))
    if end is None:
        return None
    begins = _ids(told, "bos_token_id")
    begin = named.get("bos_token", named.get("cls_token", begins[0] if begins else end))
    frame = Frame() if found is None else Frame(found.before, found.after)
    return Roles(
        end=end,
        begin=begin,
        text=frame,
        source=frame,
        target=(*_ids(told, "decoder_start_token_id"), *_ids(told, "forced_bos_token_id")),
        stops=tuple(id for id in ends if id != end),
        never=_banned(told),
        mask=named.get("mask_token"),
        pad=named.get("pad_token", next(iter(_ids(told, "pad_token_id")), None)),
    )


def _named(found: Found) -> dict[str, int]:
    """Return the ids of named tokens that the tokenizer knows."""
    ids = {name: found.pipeline.token_to_id(token) for name, token in found.named.items()}
    return {name: id for name, id in ids.items() if id is not None}


def _ids(told: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """Return the id, or the ids, that a key names."""
    value = told.get(name)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if len(ids) > MOST or not all(isinstance(id, int) and not isinstance(id, bool) and id >= 0 for id in ids):
        raise ConfigError(name, want="an id or a list of ids", got=value)
    return tuple(ids)


def _banned(told: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ids that must never be written: bad words of one token, and what is suppressed."""
    words = told.get("bad_words_ids") or []
    if not isinstance(words, list) or not all(isinstance(word, list) for word in words):
        raise ConfigError("bad_words_ids", want="a list of lists of ids", got=words)
    alone = [id for word in words if len(word) == 1 for id in _ids({"bad_words_ids": word}, "bad_words_ids")]
    return tuple(dict.fromkeys((*alone, *_ids(told, "suppress_tokens"))))
