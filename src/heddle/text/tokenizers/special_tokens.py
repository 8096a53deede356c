"""Special tokens: the ids that begin, end, mask and pad texts. Heddle's tokenizers use one token for begin and end."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from heddle.core import UsageError


@dataclass(frozen=True)
class SequenceTemplate:
    """The special tokens before and after a text."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    def apply(self, ids: Iterable[int]) -> list[int]:
        """Return the ids of a text with the special tokens around it."""
        return [*self.before, *ids, *self.after]


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens of a model, by their purpose."""

    end: int  # ends a document, and generation (EOS)
    begin: int  # begins a document (BOS)
    text: SequenceTemplate = SequenceTemplate()  # around an encoder's text; the part before also begins a prompt
    source: SequenceTemplate = SequenceTemplate()  # around the source text of an encoder-decoder
    target: tuple[int, ...] = ()  # the first ids of a decoder; empty: `begin`
    stops: tuple[int, ...] = ()  # further ids that end generation
    never: tuple[int, ...] = ()  # ids that are never generated
    mask: int | None = None  # replaces a token to be predicted
    pad: int | None = None  # pads rows in other libraries; not used here
    named: tuple[tuple[str, int], ...] | None = None  # by Hugging Face's names, of an imported tokenizer; for chats
    between: tuple[int, ...] = ()  # parts two texts that an encoder reads together; empty: what ends a text

    @property
    def ends(self) -> tuple[int, ...]:
        """Return all ids that end generation."""
        return tuple(dict.fromkeys((self.end, *self.stops)))

    @property
    def separator(self) -> tuple[int, ...]:
        """Return the ids between two texts that an encoder reads together, at least one."""
        return self.between or self.text.after or (self.end,)

    @property
    def segmented(self) -> bool:
        """Tell whether segments mark the second of two texts; RoBERTa parts them by two tokens instead."""
        return len(self.separator) < 2

    @property
    def document_start(self) -> tuple[int, ...]:
        """Return the ids that begin a document, at least one."""
        return self.text.before or (self.begin,)

    @property
    def decoder_start(self) -> tuple[int, ...]:
        """Return the ids that begin a target text, at least one."""
        return self.target or (self.begin,)

    @property
    def named_ids(self) -> dict[str, int]:
        """Return the ids by Hugging Face's names, such as bos_token; tokens that do not exist are left out."""
        if self.named is not None:
            return dict(self.named)
        ids = {"bos_token": self.begin, "eos_token": self.end, "pad_token": self.pad, "mask_token": self.mask}
        return {name: id for name, id in ids.items() if id is not None}

    @property
    def unknown(self) -> int | None:
        """Return the id that other libraries call unk_token."""
        return self.named_ids.get("unk_token")

    def check(self, vocab: int, where: str) -> None:
        """Refuse ids outside a vocabulary."""
        every = [self.mask, self.pad, self.begin, *self.ends, *self.never, *self.decoder_start]
        every += self.named_ids.values()
        every += [*self.text.apply(()), *self.source.apply(()), *self.between]
        for id in every:
            if id is not None and not 0 <= id < vocab:
                raise UsageError(f"{where}: want ids from 0 to {vocab - 1}, got {id}")


def heddle_special_tokens(end: int, mask: int | None = None) -> SpecialTokens:
    """Return the special tokens of Heddle's tokenizers: a document begins with the end token of the one before."""
    before, after = SequenceTemplate(before=(end,)), SequenceTemplate(after=(end,))
    return SpecialTokens(end=end, begin=end, text=before, source=after, target=(end,), mask=mask)


# --- as JSON data -----------------------------------------------------------------------------------------------------


def special_tokens_to_json(special_tokens: SpecialTokens) -> dict[str, Any]:
    """Return special tokens as JSON data."""
    data = asdict(special_tokens)
    named, between = data.pop("named"), data.pop("between")
    data |= {"between": between} if between else {}
    return data if named is None else data | {"named": dict(named)}


def special_tokens_from_json(data: object, where: str) -> SpecialTokens:
    """Return special tokens from JSON data; refuse anything else in one line."""
    if not isinstance(data, Mapping) or not data.keys() <= SpecialTokens.__dataclass_fields__.keys():
        raise UsageError(f"{where}: want special tokens by their purpose, got {str(data)[:60]}")
    try:
        return SpecialTokens(
            end=_id(data["end"]),
            begin=_id(data["begin"]),
            text=_sequence_template(data.get("text", {})),
            source=_sequence_template(data.get("source", {})),
            target=_ids(data.get("target", ())),
            stops=_ids(data.get("stops", ())),
            never=_ids(data.get("never", ())),
            mask=None if data.get("mask") is None else _id(data["mask"]),
            pad=None if data.get("pad") is None else _id(data["pad"]),
            named=None if data.get("named") is None else _named_ids(data["named"]),
            between=_ids(data.get("between", ())),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{where}: want special tokens by their purpose; wrong or missing: {error}") from None


def _sequence_template(data: Mapping[str, Sequence[int]]) -> SequenceTemplate:
    if not isinstance(data, Mapping):
        raise TypeError(f"want ids before and after, got {str(data)[:60]}")
    return SequenceTemplate(_ids(data.get("before", ())), _ids(data.get("after", ())))


def _named_ids(data: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    if not isinstance(data, Mapping) or len(data) > 1000:
        raise TypeError(f"want ids by name, got {str(data)[:60]}")
    return tuple((str(name), _id(id)) for name, id in data.items())


def _ids(data: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(data, list | tuple) or len(data) > 1000:
        raise TypeError(f"want a short list of ids, got {str(data)[:60]}")
    return tuple(_id(id) for id in data)


def _id(data: object) -> int:
    if not isinstance(data, int) or isinstance(data, bool):
        raise TypeError(f"want an id, got {str(data)[:60]}")
    return data
