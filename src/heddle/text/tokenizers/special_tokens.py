"""Roles: which ids do what around a text. Ours begin and end every document with one token; others have their own."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from heddle.core import UsageError


@dataclass(frozen=True)
class SequenceTemplate:
    """What stands before and after a text that a model reads."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    def apply(self, ids: Iterable[int]) -> list[int]:
        """Return the ids of a text within the frame."""
        return [*self.before, *ids, *self.after]


@dataclass(frozen=True)
class SpecialTokens:
    """The ids that a model knows for more than their text."""

    end: int  # closes a document, and what a model writes
    begin: int  # opens a document, for a model that must have read something
    text: SequenceTemplate = (
        SequenceTemplate()
    )  # around what an encoder reads; a language model goes on from what stands before and the text
    source: SequenceTemplate = SequenceTemplate()  # around what the encoder of an encoder-decoder reads
    target: tuple[int, ...] = ()  # what a decoder begins from; none: `begin`
    stops: tuple[int, ...] = ()  # further ids at which a model stops writing
    never: tuple[int, ...] = ()  # ids that it must not write
    mask: int | None = None  # hides a token from a model that is asked what stood there
    pad: int | None = None  # fills rows elsewhere; nothing here reads it

    @property
    def ends(self) -> tuple[int, ...]:
        """Return all ids at which a model stops writing."""
        return tuple(dict.fromkeys((self.end, *self.stops)))

    @property
    def document_start(self) -> tuple[int, ...]:
        """Return what a document opens with, of which there is one id at least."""
        return self.text.before or (self.begin,)

    @property
    def decoder_start(self) -> tuple[int, ...]:
        """Return what a target opens with, of which there is one id at least."""
        return self.target or (self.begin,)

    def check(self, vocab: int, where: str) -> None:
        """Refuse an id that a vocabulary does not have."""
        every = [self.mask, self.pad, self.begin, *self.ends, *self.never, *self.decoder_start]
        every += [*self.text.apply(()), *self.source.apply(())]
        for id in every:
            if id is not None and not 0 <= id < vocab:
                raise UsageError(f"{where}: want ids from 0 to {vocab - 1}, got {id}")


def heddle_special_tokens(end: int, mask: int | None = None) -> SpecialTokens:
    """Return the roles in a tokenizer of ours: a document begins with the end of the one before."""
    return SpecialTokens(
        end=end,
        begin=end,
        text=SequenceTemplate(before=(end,)),
        source=SequenceTemplate(after=(end,)),
        target=(end,),
        mask=mask,
    )


# --- as plain data ----------------------------------------------------------------------------------------------------


def special_tokens_to_json(special_tokens: SpecialTokens) -> dict[str, Any]:
    """Return roles as JSON can hold them."""
    return asdict(special_tokens)


def special_tokens_from_json(data: object, where: str) -> SpecialTokens:
    """Return roles from what JSON held; one line says what is none."""
    if not isinstance(data, Mapping) or not data.keys() <= SpecialTokens.__dataclass_fields__.keys():
        raise UsageError(f"{where}: want the roles of control tokens, got {str(data)[:60]}")
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
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{where}: want the roles of control tokens; wrong or missing: {error}") from None


def _sequence_template(data: Mapping[str, Sequence[int]]) -> SequenceTemplate:
    if not isinstance(data, Mapping):
        raise TypeError(f"want what stands before and after, got {str(data)[:60]}")
    return SequenceTemplate(_ids(data.get("before", ())), _ids(data.get("after", ())))


def _ids(data: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(data, list | tuple) or len(data) > 1000:
        raise TypeError(f"want a short list of ids, got {str(data)[:60]}")
    return tuple(_id(id) for id in data)


def _id(data: object) -> int:
    if not isinstance(data, int) or isinstance(data, bool):
        raise TypeError(f"want an id, got {str(data)[:60]}")
    return data
