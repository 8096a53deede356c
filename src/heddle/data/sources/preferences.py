"""Preference pairs: a prompt with the answer that was chosen and the one that was rejected, in JSON lines."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

from heddle.core import part, settings
from heddle.data.sources.decompress import file_stamp, find_files
from heddle.data.sources.documents import Document, DocumentCounter, FileStamp, SkipReason, SourceConfig, check_text
from heddle.data.sources.readers import JSON, Encoding, Longest
from heddle.data.sources.records import JsonRow, numbered, parse_row

LONGEST = 1 << 24  # bytes of a line
GLANCES = 100  # lines among which a row is looked for, to know what a file holds
FIELDS = ("prompt", "chosen", "rejected")


@settings
class PreferencePairs(SourceConfig, ABC):
    """Preference pairs: JSON lines, or a JSON array, of objects with a prompt, a chosen and a rejected answer.

    path: a file, a folder or a glob of JSON lines.
    prompt: the field of the prompt.
    chosen: the field of the better answer.
    rejected: the field of the worse answer.
    longest: most bytes of a line; longer ones are left out and counted.
    encoding: how the files are encoded, such as latin-1; None: UTF-8, or as a byte-order mark says.
    """

    path: str
    prompt: str = "prompt"
    chosen: str = "chosen"
    rejected: str = "rejected"
    longest: Longest = LONGEST
    encoding: Encoding | None = None

    def documents(self, counter: DocumentCounter) -> Iterator[Document]:
        """Yield one document for each line, or each element of an array."""
        for path in find_files(self.path, *JSON):
            for origin, raw in numbered(path, self.longest, counter, self.encoding):
                row = parse_row(raw)
                found = row if isinstance(row, SkipReason) else self.document(row, origin)
                if isinstance(found, SkipReason):
                    counter.skip(found, origin)
                else:
                    yield found

    def stamps(self) -> list[FileStamp]:
        """Return name, size and time of each file."""
        return [file_stamp(path) for path in find_files(self.path, *JSON)]

    @abstractmethod
    def document(self, row: JsonRow, origin: str) -> Document | SkipReason:
        """Return the pair that a row holds, or why it holds none."""


@part("preference")
class PreferenceSource(PreferencePairs):
    """Preference pairs: JSON lines, or a JSON array, of objects with a prompt, a chosen and a rejected answer.

    All three are texts. The tokens of an answer follow those of the prompt as they are: where a space belongs between
    the two, one of them has it. A pair whose answers are the same teaches nothing and is left out. Pairs with the same
    prompt stay on one side of a split.
    """

    def document(self, row: JsonRow, origin: str) -> Document | SkipReason:
        texts: list[str] = []
        for name in (self.prompt, self.chosen, self.rejected):
            value = None if isinstance(row, str) else row.get(name)
            if not isinstance(value, str):
                return SkipReason.MISSING_FIELD
            if (reason := check_text(value)) is not None:
                return reason
            texts.append(value)
        prompt, chosen, rejected = texts
        if chosen == rejected:
            return SkipReason.SAME_ANSWERS
        return Document(prompt, origin, group=prompt, target=chosen, rejected=rejected)
