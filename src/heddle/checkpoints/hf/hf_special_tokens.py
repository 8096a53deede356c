"""Special tokens of a Hugging Face folder, from its tokenizer, config and generation config."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from heddle.core import ConfigError
from heddle.text.formats import ImportedTokenizer
from heddle.text.tokenizers import SequenceTemplate, SpecialTokens

MAX_IDS = 1000  # ids in a list
# The end token of a family that has none. GPT (2018) gets its unknown token, which the model hardly ever generates.
END_SUBSTITUTES = {"openai-gpt": "unk_token"}


def infer_special_tokens(
    imported: ImportedTokenizer | None, config: Mapping[str, Any], generation: Mapping[str, Any]
) -> SpecialTokens | None:
    """Return the special tokens, or None where no token ends a text.

    The generation config takes precedence over the config; for named tokens, the tokenizer does. Ids outside the
    vocabulary, such as -1 or a family's default beside a small vocabulary, are ignored.
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
        named=None if imported is None else tuple(named.items()),
        between=() if imported is None else imported.between,
    )


def _end_substitute(named: Mapping[str, int], config: Mapping[str, Any]) -> int | None:
    """Return the end token of a family that has none of its own."""
    family = config.get("model_type")
    return named.get(END_SUBSTITUTES[family]) if isinstance(family, str) and family in END_SUBSTITUTES else None


def _named_ids(imported: ImportedTokenizer) -> dict[str, int]:
    """Return the ids of named tokens in the tokenizer."""
    ids = {name: imported.pipeline.token_to_id(token) for name, token in imported.named.items()}
    return {name: id for name, id in ids.items() if id is not None}


def _vocab(imported: ImportedTokenizer | None, config: Mapping[str, Any]) -> int | None:
    """Return the size of the vocabulary, if known."""
    if imported is not None:
        return 1 + max(imported.pipeline.get_vocab(with_added_tokens=True).values())
    size = config.get("vocab_size")
    return size if isinstance(size, int) else None


@dataclass(frozen=True)
class _TokenIds:
    """Token ids in config and generation config, for a vocabulary of known size."""

    settings: Mapping[str, Any]
    vocab: int | None

    def ids(self, name: str) -> tuple[int, ...]:
        """Return the ids of a key."""
        return self._in_vocab(name, self.settings.get(name))

    def banned(self) -> tuple[int, ...]:
        """Return the ids that are never generated: bad words of one token, and suppressed tokens."""
        words = self.settings.get("bad_words_ids") or []
        if not isinstance(words, list) or not all(isinstance(word, list) for word in words):
            raise ConfigError("bad_words_ids", want="a list of lists of ids", got=words)
        alone = [id for word in words if len(word) == 1 for id in self._in_vocab("bad_words_ids", word)]
        return tuple(dict.fromkeys((*alone, *self.ids("suppress_tokens"))))

    def _in_vocab(self, name: str, value: Any) -> tuple[int, ...]:
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if len(ids) > MAX_IDS or not all(isinstance(id, int) and not isinstance(id, bool) for id in ids):
            raise ConfigError(name, want="an id or a list of ids", got=value)
        return tuple(id for id in ids if id >= 0 and (self.vocab is None or id < self.vocab))
