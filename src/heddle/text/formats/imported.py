"""Imported tokenizers: one pipeline, its named tokens, and the special tokens around a text; checks of their files."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import tokenizers

from heddle.core import DataError, HeddleError, UsageError, first_line
from heddle.text.tokenizers import MAX_BYTES, catch_panics

NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
MAX_TOKENS = 1 << 22  # tokens in a vocabulary; the largest in use have a quarter of a million
PROBES = ("a", "the", "1", "A", ".")  # every vocabulary has a token for one of these


@dataclass(frozen=True)
class ImportedTokenizer:
    """A tokenizer imported from files of another library.

    `before` and `after` are the ids around one text, `between` those that part two. `target` is a second pipeline over
    the same ids, for models that tokenize source and target differently (Marian).
    """

    pipeline: tokenizers.Tokenizer
    source: str  # the names of its files
    named: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))  # by the keys in NAMES
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    template: str | None = None  # the chat template
    limit: int | None = None  # the longest text, in tokens
    target: tokenizers.Tokenizer | None = None
    between: tuple[int, ...] = ()


@dataclass(frozen=True)
class TokenizerSpec:
    """A pipeline without its added tokens, and the defaults of its tokenizer class."""

    pipeline: tokenizers.Tokenizer
    source: str
    where: str  # for errors
    named: Mapping[str, str] = field(default_factory=dict)  # default names, used if the vocabulary has them
    more: tuple[str, ...] = ()  # further special tokens of the class
    sequence: tuple[tuple[str, ...], tuple[str, ...]] | None = None  # named tokens around a text; None: by flags
    target: tokenizers.Tokenizer | None = None  # a second pipeline over the same ids
    own: bool = False  # the pipeline's own post-processor puts special tokens around a text
    separators: int = 1  # how many of the tokens after a text part it from a second one


@contextmanager
def refuse_damaged(where: str) -> Iterator[None]:
    """Turn the library's errors about a damaged file, including panics, into an error of one line."""
    try:
        with catch_panics([]):
            yield
    except HeddleError:
        raise
    except Exception as error:  # the library raises no narrower class
        raise DataError(f"{where}: not a tokenizer: {first_line(error)}") from None


def check_ids(vocab: Mapping[str, object], where: str) -> dict[str, int]:
    """Return a vocabulary of names and ids; refuse wrong and repeated ids."""
    seen: set[int] = set()
    found: dict[str, int] = {}
    for name, id in vocab.items():
        if not isinstance(id, int) or isinstance(id, bool) or not 0 <= id < MAX_TOKENS:
            raise DataError(f"{where}: token {name[:40]!r}: want an id from 0 to {MAX_TOKENS - 1}, got {str(id)[:40]}")
        if id in seen:
            raise DataError(f"{where}: token {name[:40]!r}: want each id once, got {id} again")
        seen.add(id)
        found[name] = id
    if not found:
        raise DataError(f"{where}: want a vocabulary, got none")
    return found


def check_merges(vocab: Mapping[str, int], merges: Iterable[tuple[str, str]], where: str) -> None:
    """Refuse a merge whose parts or result are not in the vocabulary: the library would panic."""
    for left, right in merges:
        missing = next((token for token in (left, right, left + right) if token not in vocab), None)
        if missing is not None:
            raise DataError(
                f"{where}: merge of {left[:40]!r} and {right[:40]!r}: {missing[:40]!r} is out of vocabulary"
            )


def probe_special_tokens(pipeline: tokenizers.Tokenizer, where: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids that the post-processor puts before and after a text, by encoding a short one."""
    vocab = pipeline.get_vocab(with_added_tokens=True)
    largest = max(vocab.values())
    for probe in PROBES:
        plain = pipeline.encode(probe, add_special_tokens=False).ids
        whole = pipeline.encode(probe, add_special_tokens=True).ids
        extra = len(whole) - len(plain)
        places = [at for at in range(extra + 1) if whole[at : at + len(plain)] == plain]
        if plain and places:
            before, after = tuple(whole[: places[0]]), tuple(whole[places[0] + len(plain) :])
            if any(not 0 <= id <= largest for id in (*before, *after)):
                raise DataError(f"{where}: adds ids to a text that are not in its vocabulary")
            return before, after
    return (), ()


def probe_separator(pipeline: tokenizers.Tokenizer, before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, ...]:
    """Return the ids that the post-processor puts between two texts, by encoding two short ones."""
    for probe in PROBES:
        plain = pipeline.encode(probe, add_special_tokens=False).ids
        both = pipeline.encode(probe, probe, add_special_tokens=True).ids
        inner = both[len(before) + len(plain) : len(both) - len(after) - len(plain)]
        if plain and [*before, *plain, *inner, *plain, *after] == both:
            return tuple(inner)
    return ()


# --- files ------------------------------------------------------------------------------------------------------------


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a file of bounded size."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise DataError(f"{path}: larger than {MAX_BYTES} bytes, too large for a file of this kind")
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None


def read_utf8(path: Path) -> str:
    """Return the text of a file, with its line ends unchanged."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: want UTF-8, got another byte at {error.start}") from None


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file; only a line feed ends a line."""
    lines = read_utf8(path).split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]
