"""Chat: turns of a conversation -> the ids that a model was trained to read, by the model's own template.

The template is Jinja's, as a file beside the tokenizer; it is interpreted within limits (`heddle.text.template`). The
text of a message never becomes a control token, whatever it spells and whatever the template does to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from heddle.core import UsageError, brief, hint
from heddle.core.system import read_table, read_text
from heddle.text.chat.builtin_templates import BUILTIN
from heddle.text.chat.control_tokens import ControlTokens
from heddle.text.template import WRITTEN, MarkedText, Template, Value, trusted, value_of
from heddle.text.tokenizers import TOKENIZER_CONFIG, Tokenizer

Message = Mapping[str, object]  # role, content, and what else the template knows, such as tool_calls

TEMPLATE = "chat_template.jinja"  # beside a tokenizer
# Templates build tokens of roles: `<|` + role + `|>`. These may become one; any other role is text like a message's.
ROLES = frozenset(("system", "developer", "user", "assistant", "model", "tool", "function", "ipython"))
PROBES = ("Qvxq", "Xzvq", "Zvqx")  # texts to find again in what a template renders


@dataclass(frozen=True)
class StopSequences:
    """Where an answer ends: ids, and texts where a template marks turns without control tokens."""

    ids: tuple[int, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True)
class TrainingExample:
    """A conversation to learn from: its ids, which of them the assistant is to write, and the same of its text."""

    ids: list[int]
    assistant_mask: list[bool]
    texts: list[tuple[str, bool]]  # without control tokens


class Chat:
    """A template and a tokenizer: `chat.ids([{"role": "user", "content": "Hi"}])` is what the model goes on from.

    `settings` are names that a template may ask for beyond the conversation, such as enable_thinking; their texts are
    trusted. The tokens that begin and end a document are the tokenizer's own unless they are among them.
    """

    def __init__(self, template: str, tokenizer: Tokenizer, settings: Mapping[str, object] | None = None) -> None:
        self.template = Template(template)
        self.tokenizer = tokenizer
        named: dict[str, object] = {
            "bos_token": tokenizer.token(tokenizer.special_tokens.begin),
            "eos_token": tokenizer.token(tokenizer.special_tokens.end),
        }
        named |= dict(settings or {})
        self._settings = {name: trusted(value) for name, value in named.items()}
        self._control_tokens = ControlTokens(tokenizer, template)

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, tools: Sequence[object] | None = None
    ) -> MarkedText:
        """Return a conversation as the template writes it; `ask` ends it where the model's answer begins."""
        if isinstance(messages, str | Mapping) or not messages:
            raise UsageError('chat: want one message or more, such as [{"role": "user", "content": "Hi"}]')
        values: dict[str, Value] = {
            "messages": [_message(message, i) for i, message in enumerate(messages, 1)],
            "tools": None if tools is None else value_of(tools),
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        return self.template.render(self._settings | values)

    def ids(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, tools: Sequence[object] | None = None
    ) -> list[int]:
        """Return the ids of a conversation."""
        return self._control_tokens.encode(
            self.render(messages, add_generation_prompt=add_generation_prompt, tools=tools)
        )

    def training_example(
        self, messages: Sequence[Message], *, tools: Sequence[object] | None = None
    ) -> TrainingExample:
        """Return a whole conversation with what the assistant is to write of it.

        An answer begins with a token of its own, as it does when it is generated: no merge crosses from the prompt.
        """
        text = self.render(messages, add_generation_prompt=False, tools=tools)
        if not any(mark & WRITTEN for mark in set(text.marks)):
            text = self._answers(messages, text, tools)
        example = TrainingExample([], [], [])
        for start, stop, which in text.spans(WRITTEN):
            span = text.between(start, stop)
            found = self._control_tokens.encode(span)
            example.ids.extend(found)
            example.assistant_mask.extend([which] * len(found))
            example.texts.append((self._control_tokens.strip(span), which))
        return example

    def _answers(self, messages: Sequence[Message], rendered: MarkedText, tools: Sequence[object] | None) -> MarkedText:
        """Mark the answers in a text whose template does not, from what it writes before and after each."""
        last = 0
        pieces: list[MarkedText] = []
        for i, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            after = self.render(messages[: i + 1], add_generation_prompt=False, tools=tools)
            before = self.render(messages[:i], add_generation_prompt=True, tools=tools) if i else _up_to(message, after)
            if not (rendered.plain.startswith(after.plain) and after.plain.startswith(before.plain)):
                raise UsageError(
                    "chat template: rewrites earlier turns; to tell answers apart it needs {% generation %}"
                )
            answer = rendered.between(len(before), len(after))
            ends = [stop for _, stop, id in self._control_tokens.find(answer) if id in self.stops.ids]
            stop = len(before) + (ends[0] if ends else len(answer))
            pieces += [rendered.between(last, len(before)), rendered.between(len(before), stop).marked(WRITTEN)]
            last = stop
        return MarkedText("").join([*pieces, rendered.between(last, len(rendered))])

    @cached_property
    def stops(self) -> StopSequences:
        """Tell where an answer ends: at the first control token after it, or else at what begins the next turn."""
        asked, answered, again = PROBES
        turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
        ids, texts = [*self.tokenizer.special_tokens.ends], list[str]()
        for messages in (turns, [*turns, {"role": "user", "content": again}]):
            try:
                text = self.render(messages, add_generation_prompt=False)
            except UsageError:  # not every template takes these turns
                continue
            start, stop = text.plain.rfind(answered) + len(answered), text.plain.rfind(again)
            after = text.between(start, stop if stop > start else len(text))
            found = next(self._control_tokens.find(after), None)
            if found is not None:
                ids.append(found[2])
            elif stop > start:
                texts.append(after.plain.rstrip() or after.plain)
        return StopSequences(tuple(dict.fromkeys(ids)), tuple(text for text in texts if text))


def _up_to(message: Message, text: MarkedText) -> MarkedText:
    """Return what a template writes before the first message of all, which no question comes before."""
    content = message.get("content")
    start = text.plain.rfind(content.strip()) if isinstance(content, str) else 0
    return text.between(0, max(0, start))


def _message(message: Message, number: int) -> Value:
    """Return a message as a template sees it: its role is trusted where it is a known one, its text never."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise UsageError(f"chat: message {number}: want a table with a role and a content, got {brief(message)}")
    if not any(key in message for key in ("content", "tool_calls")):
        raise UsageError(f"chat: message {number}: want a content, got the keys {', '.join(map(str, message))[:80]}")
    value = value_of(message)
    assert isinstance(value, dict)
    return value | {MarkedText("role"): trusted(message["role"])} if message["role"] in ROLES else value


# --- where templates come from ----------------------------------------------------------------------------------------


def load_template(folder: Path) -> str | None:
    """Return the chat template beside a tokenizer, from a file of its own or from the tokenizer's config, or None."""
    if (folder / TEMPLATE).is_file():
        return read_text(folder / TEMPLATE)
    if not (folder / TOKENIZER_CONFIG).is_file():
        return None
    found = read_table(folder / TOKENIZER_CONFIG).get("chat_template")
    if isinstance(found, list):  # several under names
        named = [entry for entry in found if isinstance(entry, dict)]
        found = next((entry.get("template") for entry in named if entry.get("name") == "default"), None)
    return found if isinstance(found, str) else None


def template_control_tokens(name: str) -> tuple[str, ...]:
    """Return the control tokens that a tokenizer must have for a built-in template; none for a file."""
    return BUILTIN[name][1] if name in BUILTIN else ()


def find_template(name: str, tokenizer: Tokenizer) -> str:
    """Return a built-in template, if the tokenizer has the control tokens that it writes, or what a file holds."""
    if name not in BUILTIN:
        if Path(name).is_file():
            return read_text(Path(name))
        raise UsageError(f"template: want a file or one of {', '.join(BUILTIN)}, got {name!r}{hint(name, BUILTIN)}")
    source, tokens = BUILTIN[name]
    missing = [token for token in tokens if token not in tokenizer.special]
    if missing:
        raise UsageError(f"template {name}: this tokenizer has no token {', '.join(missing)}; plain needs none")
    return source
