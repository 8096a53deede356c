"""Preference pairs: a prompt, or a conversation, with the answer that was chosen and the one that was rejected."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace

from heddle.core import part, settings
from heddle.data.files import file_stamp, find_files
from heddle.data.sources.chats import ChatSource, readable
from heddle.data.sources.documents import (
    Conversation,
    Document,
    DocumentCounter,
    FileStamp,
    SkipReason,
    SourceConfig,
    check_text,
)
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


@part("chat_preference")
class ChatPreferenceSource(PreferencePairs):
    """Preference pairs of conversations: JSON lines of objects with messages chosen and messages rejected.

    Both are lists of messages. They follow those of the prompt, if it is a list, too; a prompt that is a text is what
    the user says before two lists that begin with an answer. Otherwise the lists are whole conversations. Each side
    ends with an answer. Pairs with the same messages before they part stay on one side of a split.

    prompt: the field of the messages before the answers, where a row has one.
    chosen: the field of the better messages.
    rejected: the field of the worse messages.
    """

    def document(self, row: JsonRow, origin: str) -> Document | SkipReason:
        if isinstance(row, str):
            return SkipReason.BAD_JSON
        sides: list[Conversation] = []
        for name in (self.chosen, self.rejected):
            conversation = self._side(row, name)
            if isinstance(conversation, SkipReason):
                return conversation
            sides.append(conversation)
        chosen, rejected = sides
        if chosen.messages == rejected.messages:
            return SkipReason.SAME_ANSWERS
        both = zip(chosen.messages, rejected.messages, strict=False)
        parting = next((n for n, (one, other) in enumerate(both) if one != other), len(chosen.messages))
        group = replace(chosen, messages=chosen.messages[:parting]).plain
        return Document(readable(chosen), origin, group=group, conversation=chosen, rejected_conversation=rejected)

    def _side(self, row: dict[str, object], name: str) -> Conversation | SkipReason:
        """Return the conversation of one side, which ends with an answer."""
        answer, prompt = row.get(name), row.get(self.prompt)
        if not isinstance(answer, list):
            return SkipReason.MISSING_FIELD
        begins = answer[0].get("role") if answer and isinstance(answer[0], dict) else None
        before = prompt if isinstance(prompt, list) else []
        if isinstance(prompt, str) and begins == "assistant":
            before = [{"role": "user", "content": prompt}]
        conversation = ChatSource(path=self.path, turns=name).conversation(row | {name: [*before, *answer]})
        if isinstance(conversation, Conversation) and conversation.messages[-1]["role"] != "assistant":
            return SkipReason.NO_ANSWER
        return conversation


def preferences_at(path: str) -> SourceConfig | None:
    """Return the source of preference pairs that a JSON file holds, by its first row; None: it holds none."""
    for file in find_files(path, *JSON)[:1]:
        for _, (_, raw) in zip(range(GLANCES), numbered(file, LONGEST, DocumentCounter()), strict=False):
            row = parse_row(raw)
            if isinstance(row, dict):
                if all(isinstance(row.get(name), str) for name in FIELDS):
                    return PreferenceSource(path=path)
                messages = all(isinstance(row.get(name), list) for name in FIELDS[1:])
                return ChatPreferenceSource(path=path) if messages else None
    return None
