"""Chunks: a long text is split where no token could cross, so that encoding takes linear time."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import tokenizers

from heddle.core.system import parse_json
from heddle.text.tokenizers.pretokenize import SPLITS_BEFORE_SPACES

MAX_CHARACTERS = 1 << 13  # characters; long words take more than linear time, and chunks run in parallel
# Where a text may be split. words: before the whitespace after a word, or anywhere if there is none. spaces: only
# before a space that follows a plain character. nowhere: a text is one chunk.
ChunkBoundaries = Literal["words", "spaces", "nowhere"]
METASPACE = "\u2581"  # SentencePiece's mark for a space
SPANS_TWO_WORDS = re.compile(f"[^{METASPACE}]{METASPACE}")  # a token that spans two words
GAP = re.compile(r"\S ")


def split_into_chunks(text: str, boundaries: ChunkBoundaries = "words", longest: int = MAX_CHARACTERS) -> Iterator[str]:
    """Split a text into chunks of about `longest` characters.

    Every caller (one text, many texts, training, preparing a corpus) uses this, so their tokens agree.
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
    edge = low + len(text[low:gap].rstrip())  # the end of the word before the gap
    return edge if edge > low else stop


def _boundary_at_space(text: str, start: int, stop: int) -> int:
    """Return the first safe boundary from `stop` on, or the end."""
    for gap in GAP.finditer(text, stop - 1):
        if _plain(gap.group()[0]):
            return gap.start() + 1
    return len(text)


def _plain(letter: str) -> bool:
    """Tell whether a character never combines with the next one in any Unicode normal form.

    Nor may normalization drop it, since a space before it would then touch the boundary.
    """
    return (letter.isascii() and letter.isprintable()) or letter.islower() or letter.isupper()


# --- safe boundaries of imported tokenizers ---------------------------------------------------------------------------


def chunk_boundaries(pipeline: tokenizers.Tokenizer) -> ChunkBoundaries:
    """Return where texts may be split so that the ids are those of the whole: before spaces, or nowhere.

    A boundary is safe if pre-tokenization always ends a word before a space, if no normalization rule or added token
    spans it, and if nothing is added at the beginning of each chunk. Unknown pipelines are never split.
    """
    added = [token for token in pipeline.get_added_tokens_decoder().values() if not token.special]
    if any(token.rstrip or " " in token.content.lstrip(" ") for token in added):
        return "nowhere"
    normal, words = (pipeline_steps(part) for part in (pipeline.normalizer, pipeline.pre_tokenizer))
    if all(map(_normalizes_locally, normal)) and _splits_before_spaces(words):
        return "spaces"
    return "spaces" if _only_metaspaces(normal, words) and _no_merge_crosses_words(pipeline) else "nowhere"


def pipeline_steps(part: Any) -> list[Mapping[str, Any]]:
    """Return the steps of a component of a pipeline, as JSON data."""
    return [] if part is None else _flatten(parse_json(part.__getstate__().decode()))


def _flatten(step: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    match step:
        case {"type": "Sequence", "normalizers": list(inner)} | {"type": "Sequence", "pretokenizers": list(inner)}:
            return [one for each in inner for one in _flatten(each)]
    return [step]


def _normalizes_locally(step: Mapping[str, Any]) -> bool:
    """Tell whether a normalization step acts on two parts of a text as on the whole."""
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
    """Tell whether pre-tokenization ends words before a space; earlier steps may only split more."""
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
    """Tell whether spaces become metaspaces and nothing is split at them."""
    match normal, words:
        case [], [{"type": "Metaspace", "split": False}, *rest]:
            pass
        case [{"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}], [*rest]:
            pass
        case _:
            return False
    return all(step.get("type") == "Split" and METASPACE not in str(step.get("pattern")) for step in rest)


def _no_merge_crosses_words(pipeline: tokenizers.Tokenizer) -> bool:
    """Tell whether no merge spans two words, so that each word is encoded by itself."""
    vocab = pipeline.get_vocab(with_added_tokens=False)
    bpe = isinstance(pipeline.model, tokenizers.models.BPE)
    return bpe and METASPACE in vocab and not any(SPANS_TWO_WORDS.search(name) for name in vocab)
