"""Roles there: which ids begin and end texts, as tokenizer, config and settings of generation tell together."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from heddle.core import ConfigError
from heddle.text.formats import ImportedTokenizer
from heddle.text.tokenizers import SequenceTemplate, SpecialTokens

MOST = 1000  # ids in a list
# What stands for the end of a text in a family that has no token for it: GPT's (2018) is the one for what is unknown,
# which a model that was trained on books does not write.
END_SUBSTITUTES = {"openai-gpt": "unk_token"}


def infer_special_tokens(
    imported: ImportedTokenizer | None, config: Mapping[str, Any], generation: Mapping[str, Any]
) -> SpecialTokens | None:
    """Return which ids do what, or None where nothing says what ends a text.

    What stands first counts: the settings of generation, then the config, and of names the tokenizer's own. Ids that
    the vocabulary does not have, such as a default of the family's beside a small one, or -1, do nothing there.
    """
    settings = {**config, **{key: value for key, value in generation.items() if value is not None}}
    token_ids = _TokenIds(settings, _vocab(imported, config))
    named = {} if imported is None else _named_ids(imported)
    ends = token_ids.ids("eos_token_id")
    end = named.get("eos_token", ends[0] if ends else named.get("sep_token", _end_substitute(named, config)))
    if end is None:
        return None
    begins = token_ids.ids("bos_token_id")
    begin = named.get("bos_token", named.get("cls_token", begins[0] if begins else end))
    sequence = SequenceTemplate() if imported is None else SequenceTemplate(imported.before, imported.after)
    return SpecialTokens(
        end=end,
        begin=begin,
        text=sequence,
        source=sequence,
        target=(*token_ids.ids("decoder_start_token_id"), *token_ids.ids("forced_bos_token_id")),
        stops=tuple(id for id in ends if id != end),
        never=token_ids.banned(),
        mask=named.get("mask_token"),
        pad=named.get("pad_token", next(iter(token_ids.ids("pad_token_id")), None)),
    )


def _end_substitute(named: Mapping[str, int], config: Mapping[str, Any]) -> int | None:
    """Return what stands for an end in a family that has none."""
    family = config.get("model_type")
    return named.get(END_SUBSTITUTES[family]) if isinstance(family, str) and family in END_SUBSTITUTES else None


def _named_ids(imported: ImportedTokenizer) -> dict[str, int]:
    """Return the ids of named tokens that the tokenizer knows."""
    ids = {name: imported.pipeline.token_to_id(token) for name, token in imported.named.items()}
    return {name: id for name, id in ids.items() if id is not None}


def _vocab(imported: ImportedTokenizer | None, config: Mapping[str, Any]) -> int | None:
    """Return how many ids there are, as far as is known."""
    if imported is not None:
        return 1 + max(imported.pipeline.get_vocab(with_added_tokens=True).values())
    size = config.get("vocab_size")
    return size if isinstance(size, int) else None


@dataclass(frozen=True)
class _TokenIds:
    """What config and settings of generation say together, of so many ids."""

    settings: Mapping[str, Any]
    vocab: int | None

    def ids(self, name: str) -> tuple[int, ...]:
        """Return the id, or the ids, that a key names."""
        return self._read_if_there(name, self.settings.get(name))

    def banned(self) -> tuple[int, ...]:
        """Return the ids that must never be written: bad words of one token, and what is suppressed."""
        words = self.settings.get("bad_words_ids") or []
        if not isinstance(words, list) or not all(isinstance(word, list) for word in words):
            raise ConfigError("bad_words_ids", want="a list of lists of ids", got=words)
        alone = [id for word in words if len(word) == 1 for id in self._read_if_there("bad_words_ids", word)]
        return tuple(dict.fromkeys((*alone, *self.ids("suppress_tokens"))))

    def _read_if_there(self, name: str, value: Any) -> tuple[int, ...]:
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if len(ids) > MOST or not all(isinstance(id, int) and not isinstance(id, bool) for id in ids):
            raise ConfigError(name, want="an id or a list of ids", got=value)
        return tuple(id for id in ids if id >= 0 and (self.vocab is None or id < self.vocab))
