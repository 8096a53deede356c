"""Chat data: conversations in JSON lines, in the formats in use (messages, ShareGPT, plain turns)."""

from collections.abc import Iterator, Mapping
from typing import Literal

from heddle.core import part
from heddle.data.files import file_stamp, find_files
from heddle.data.sources.documents import Conversation, Document, DocumentCounter, FileStamp, SkipReason, SourceConfig
from heddle.data.sources.readers import JSON, Longest
from heddle.data.sources.records import Encoding, JsonRow, numbered, parse_row

FIELDS = ("messages", "conversations", "dialog", "dialogue")
SPEAKERS = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "observation": "tool"}  # ShareGPT's names
LONGEST = 1 << 24  # bytes of a line
GLANCES = 100  # lines among which a row is looked for, to know what a file holds

Message = dict[str, object]


@part("chat")
class ChatSource(SourceConfig):
    """Conversations: JSON lines, or a JSON array in a `.json` file, of objects with a list of turns.


    A turn is {"role", "content"}, and what else a template knows of it such as tool_calls, or {"from", "value"}, or a
    text. A row may also hold `tools` for the template, and `system`, which comes before the turns.

    path: a file, a folder or a glob of JSON lines.
    turns: the field of a row's turns; None: messages, conversations or dialog, whichever a row has.
    first: who speaks first where turns are plain texts, of user and assistant alternately.
    longest: most bytes of a line; longer ones are left out and counted.
    encoding: how the files are encoded, such as latin-1; None: UTF-8, or as a byte-order mark says.
    """

    path: str
    turns: str | None = None
    first: Literal["user", "assistant"] = "user"
    longest: Longest = LONGEST
    encoding: Encoding | None = None

    def documents(self, counter: DocumentCounter) -> Iterator[Document]:
        """Yield one document for each line, or each element of an array."""
        for path in find_files(self.path, *JSON):
            for origin, raw in numbered(path, self.longest, counter, self.encoding):
                row = parse_row(raw)
                found = row if isinstance(row, SkipReason) else self.conversation(row)
                if isinstance(found, SkipReason):
                    counter.skip(found, origin)
                else:
                    yield Document(readable(found), origin, conversation=found)

    def stamps(self) -> list[FileStamp]:
        """Return name, size and time of each file."""
        return [file_stamp(path) for path in find_files(self.path, *JSON)]

    def conversation(self, row: JsonRow) -> Conversation | SkipReason:
        """Return the conversation that a row holds, or why it holds none."""
        if isinstance(row, str):
            return SkipReason.BAD_JSON
        field = _field(row) if self.turns is None else self.turns
        if field is None or field not in row:
            return SkipReason.MISSING_FIELD
        listed, tools, system = row[field], row.get("tools") or None, row.get("system")
        if not isinstance(listed, list) or not isinstance(tools, list | None) or not isinstance(system, str | None):
            return SkipReason.BAD_TURNS
        found = [_message(turn, self._speaker(number)) for number, turn in enumerate(listed)]
        messages = [message for message in found if message is not None]
        if len(messages) < len(found):
            return SkipReason.BAD_TURNS
        if system and messages and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": system})
        return _checked(Conversation(tuple(messages), None if tools is None else tuple(tools)))

    def _speaker(self, number: int) -> str:
        return self.first if number % 2 == 0 else {"user": "assistant", "assistant": "user"}[self.first]


def holds_chats(path: str) -> bool:
    """Tell whether the first row of a JSON file is a conversation; one without turns is not counted."""
    for file in find_files(path, *JSON)[:1]:
        for _, (_, raw) in zip(range(GLANCES), numbered(file, LONGEST, DocumentCounter()), strict=False):
            row = parse_row(raw)
            field = _field(row) if isinstance(row, dict) else None
            if isinstance(row, dict) and (field is None or row[field]):
                return field is not None
    return False


def _field(row: Mapping[str, object]) -> str | None:
    return next((name for name in FIELDS if isinstance(row.get(name), list)), None)


def _message(turn: object, speaker: str) -> Message | None:
    """Return a turn as a message, or None where it is none; `speaker` is whose it is when it does not say."""
    if isinstance(turn, str):
        return {"role": speaker, "content": turn}
    if not isinstance(turn, dict):
        return None
    if "role" not in turn and "from" in turn:
        name, text = turn["from"], turn.get("value")
        known = isinstance(name, str) and _is_content(text)
        return {"role": SPEAKERS.get(name, name), "content": text} if known else None
    calls = turn.get("content") is None and isinstance(turn.get("tool_calls"), list)
    return turn if isinstance(turn.get("role"), str) and (calls or _is_content(turn.get("content"))) else None


def _is_content(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(part, dict) for part in value))


def _texts(message: Mapping[str, object]) -> Iterator[str]:
    """Yield the texts of a message: its content, or the texts among the parts of its content."""
    content = message.get("content")
    for piece in content if isinstance(content, list) else [{"text": content}]:
        text = piece.get("text")
        if isinstance(text, str):
            yield text


def _checked(conversation: Conversation) -> Conversation | SkipReason:
    """Return a conversation whose texts can be used, or why they cannot."""
    texts = [text for message in conversation.messages for text in _texts(message)]
    if all(text.isspace() or not text for text in texts):
        return SkipReason.EMPTY
    if any("\0" in text for text in texts):
        return SkipReason.BINARY
    try:
        conversation.plain.encode()
    except UnicodeEncodeError:
        return SkipReason.NOT_UTF8
    except RecursionError:
        return SkipReason.BAD_JSON
    return conversation


def readable(conversation: Conversation) -> str:
    """Return a conversation as text that a tokenizer can learn from: the words that mark turns among them."""
    return "\n".join(f"{str(m['role']).capitalize()}: {text}" for m in conversation.messages for text in _texts(m))
