"""Preference pairs of conversations: two that end differently, of which one was chosen, in JSON lines."""

from dataclasses import replace

from heddle.core import part
from heddle.data.sources.chats import ChatSource, readable
from heddle.data.sources.decompress import find_files
from heddle.data.sources.documents import Conversation, Document, DocumentCounter, SkipReason, SourceConfig
from heddle.data.sources.preferences import FIELDS, GLANCES, LONGEST, PreferencePairs, PreferenceSource
from heddle.data.sources.readers import JSON
from heddle.data.sources.records import JsonRow, numbered, parse_row


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
