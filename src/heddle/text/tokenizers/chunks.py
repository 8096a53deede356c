"""Pieces: a text in bounded stretches, cut where no token would have crossed, so that time is linear in length."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import tokenizers

from heddle.core.system import parse_json
from heddle.text.tokenizers.pretokenize import SPLITS_BEFORE_SPACES

LONGEST = 1 << 13  # characters; long runs cost more than linear time inside a word, and pieces run in parallel
# Where a text may be cut. words: before the whitespace that follows a word, or where it must be. spaces: before a space
# that follows a plain character, and else not at all. nowhere: a text is one piece.
ChunkBoundaries = Literal["words", "spaces", "nowhere"]
METASPACE = "\u2581"  # SentencePiece's sign for a space
ACROSS = re.compile(f"[^{METASPACE}]{METASPACE}")  # a token that reaches from one word into the next
GAP = re.compile(r"\S ")


def split_into_chunks(text: str, boundaries: ChunkBoundaries = "words", longest: int = LONGEST) -> Iterator[str]:
    """Cut a text into pieces of about so many characters.

    Every path (one text, many texts, training, preparing a corpus) cuts in this way, so they agree to the token.
    """
    start = 0
    while len(text) - start > longest and boundaries != "nowhere":
        stop = (_boundary_between_words if boundaries == "words" else _boundary_at_space)(text, start, start + longest)
        yield text[start:stop]
        start = stop
    if start < len(text):
        yield text[start:] if start else text


def _boundary_between_words(text: str, start: int, stop: int) -> int:
    low = start + (stop - start) // 2
    gap = max(text.rfind(" ", low, stop), text.rfind("\n", low, stop))
    if gap < 0:
        return stop
    edge = low + len(text[low:gap].rstrip())  # the end of the last word before the gap
    return edge if edge > low else stop


def _boundary_at_space(text: str, start: int, stop: int) -> int:
    """Return the first safe place after so many characters, or the end."""
    for gap in GAP.finditer(text, stop - 1):
        if _plain(gap.group()[0]):
            return gap.start() + 1
    return len(text)


def _plain(letter: str) -> bool:
    """Say whether a character stays by itself in every normal form: no mark, and none that draws the next to it.

    Nor may normalising drop it, for then a space before it would meet the cut.
    """
    return (letter.isascii() and letter.isprintable()) or letter.islower() or letter.isupper()


# --- where other makers' tokenizers may be cut ------------------------------------------------------------------------


def chunk_boundaries(pipeline: tokenizers.Tokenizer) -> ChunkBoundaries:
    """Tell where a text may be cut so that this pipeline gives the ids of the whole: before spaces, or nowhere.

    A cut is safe where words end before a space whatever stands on the other side, where no rule of normalising, nor
    any added token, reaches over it, and where nothing is put at the beginning of each piece. Of pipelines that are not
    known to be so, none is cut.
    """
    added = [token for token in pipeline.get_added_tokens_decoder().values() if not token.special]
    if any(token.rstrip or " " in token.content.lstrip(" ") for token in added):
        return "nowhere"
    normal, words = (pipeline_steps(part) for part in (pipeline.normalizer, pipeline.pre_tokenizer))
    if all(map(_normalizes_locally, normal)) and _splits_before_spaces(words):
        return "spaces"
    return "spaces" if _only_metaspaces(normal, words) and _no_merge_crosses_words(pipeline) else "nowhere"


def pipeline_steps(part: Any) -> list[Mapping[str, Any]]:
    """Return the steps of a part of the pipeline, in the library's own words."""
    return [] if part is None else _flatten(parse_json(part.__getstate__().decode()))


def _flatten(step: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    match step:
        case {"type": "Sequence", "normalizers": list(inner)} | {"type": "Sequence", "pretokenizers": list(inner)}:
            return [one for each in inner for one in _flatten(each)]
    return [step]


def _normalizes_locally(step: Mapping[str, Any]) -> bool:
    """Say whether a step of normalising does the same to two parts of a text as to the whole."""
    match step:
        case {"type": "NFC" | "NFD" | "NFKC" | "NFKD" | "Lowercase" | "StripAccents" | "BertNormalizer"}:
            return True
        case {"type": "Precompiled" | "Nmt"}:
            return True
        case {"type": "Replace", "pattern": {"String": str(text)}}:
            return " " not in text
        case {"type": "Replace", "pattern": {"Regex": " {2,}" | r"\n"}}:
            return True
    return False


def _splits_before_spaces(steps: Sequence[Mapping[str, Any]]) -> bool:
    """Say whether words end before a space: by a step that ends them there, after steps that only cut more."""
    for number, step in enumerate(steps):
        match step:
            case {"type": "Digits" | "Punctuation"}:
                continue
            case {"type": "BertPreTokenizer" | "Whitespace" | "WhitespaceSplit"}:
                return all(after.get("prepend_scheme") != "first" for after in steps[number + 1 :])
            case {"type": "ByteLevel", "use_regex": True} | {"type": "Metaspace", "split": True}:
                return True
            case {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}:
                return pattern in SPLITS_BEFORE_SPACES
        return False
    return False


def _only_metaspaces(normal: Sequence[Mapping[str, Any]], words: Sequence[Mapping[str, Any]]) -> bool:
    """Say whether spaces become marks and a text stays in one stretch, but for cuts that no mark takes part in."""
    match normal, words:
        case [], [{"type": "Metaspace", "split": False}, *rest]:
            pass
        case [{"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}], [*rest]:
            pass
        case _:
            return False
    return all(step.get("type") == "Split" and METASPACE not in str(step.get("pattern")) for step in rest)


def _no_merge_crosses_words(pipeline: tokenizers.Tokenizer) -> bool:
    """Say whether no merge reaches over a mark, so that words are joined each by itself though they are not apart."""
    vocab = pipeline.get_vocab(with_added_tokens=False)
    bpe = isinstance(pipeline.model, tokenizers.models.BPE)
    return bpe and METASPACE in vocab and not any(ACROSS.search(name) for name in vocab)
