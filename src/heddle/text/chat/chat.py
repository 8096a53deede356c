"""Chat: encodes conversations by the model's chat template, for generation and for training.

The template is a Jinja file beside the tokenizer; it is interpreted within limits (`heddle.text.template`). The text of
a message never becomes a control token, whatever it contains and whatever the template does to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from heddle.core import UsageError, brief, hint
from heddle.core.system import parse_table, read_text
from heddle.text.chat.builtin_templates import BUILTIN
from heddle.text.chat.control_tokens import ControlTokens
from heddle.text.template import WRITTEN, MarkedText, Template, Value, trusted, value_of
from heddle.text.tokenizers import TOKENIZER_CONFIG, Tokenizer

Message = Mapping[str, object]  # role, content, and other keys of the template, such as tool_calls
Messages = Sequence[Message]
Tools = Sequence[object] | None

TEMPLATE = "chat_template.jinja"  # beside a tokenizer
# Templates build tokens from roles: `<|` + role + `|>`. These are trusted; any other role is treated like a message.
ROLES = frozenset(("system", "developer", "user", "assistant", "model", "tool", "function", "ipython"))
PROBES = ("Qvxq", "Xzvq", "Zvqx")  # texts to look for in a rendered template


@dataclass(frozen=True)
class StopSequences:
    """The ids and strings that end an answer; strings, where a template marks turns without control tokens."""

    ids: tuple[int, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True)
class TrainingExample:
    """A conversation to train on: its ids, the mask of those that the assistant writes, and the same for its text."""

    ids: list[int]
    assistant_mask: list[bool]
    texts: list[tuple[str, bool]]  # without control tokens


class Chat:
    """A chat template with a tokenizer: `chat.ids([{"role": "user", "content": "Hi"}])` is the prompt for an answer.

    `settings` are further variables of the template, such as enable_thinking; their texts are trusted. The special
    tokens (bos_token, eos_token, pad_token, ...) are the tokenizer's unless set; one that it lacks is undefined.
    """

    def __init__(self, template: str, tokenizer: Tokenizer, settings: Mapping[str, object] | None = None) -> None:
        self.template = Template(template)
        self.tokenizer = tokenizer
        special = {name: tokenizer.token(id) for name, id in tokenizer.special_tokens.named_ids.items()}
        self._settings = {name: trusted(value) for name, value in {**special, **(settings or {})}.items()}
        self._control_tokens = ControlTokens(tokenizer, template)

    def render(self, messages: Messages, *, add_generation_prompt: bool = True, tools: Tools = None) -> MarkedText:
        """Render a conversation; `add_generation_prompt` ends it where the model's answer begins."""
        if isinstance(messages, str | Mapping) or not messages:
            raise UsageError('chat: want one message or more, such as [{"role": "user", "content": "Hi"}]')
        values: dict[str, Value] = {
            "messages": [_message(message, i) for i, message in enumerate(messages, 1)],
            "tools": None if tools is None else value_of(tools),
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        return self.template.render(self._settings | values)

    def ids(self, messages: Messages, *, add_generation_prompt: bool = True, tools: Tools = None) -> list[int]:
        """Return the ids of a conversation."""
        text = self.render(messages, add_generation_prompt=add_generation_prompt, tools=tools)
        return self._control_tokens.encode(text)

    def training_example(self, messages: Messages, *, tools: Tools = None) -> TrainingExample:
        """Return a whole conversation with the mask of what the assistant writes.

        An answer begins with a new token, as in generation: no merge spans prompt and answer.
        """
        text = self.render(messages, add_generation_prompt=False, tools=tools)
        if not any(mark & WRITTEN for mark in set(text.marks)):
            text = self._answers(messages, text, tools)
        example = TrainingExample([], [], [])
        for start, stop, which in text.spans(WRITTEN):
            span = text[start:stop]
            found = self._control_tokens.encode(span)
            example.ids.extend(found)
            example.assistant_mask.extend([which] * len(found))
            example.texts.append((self._control_tokens.strip(span), which))
        return example

    def _answers(self, messages: Messages, rendered: MarkedText, tools: Tools) -> MarkedText:
        """Mark the answers in a text whose template does not, by rendering the conversation before and after each."""
        last = 0
        pieces: list[MarkedText] = []
        for i, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            after = self.render(messages[: i + 1], add_generation_prompt=False, tools=tools)
            before = self.render(messages[:i], add_generation_prompt=True, tools=tools) if i else _up_to(message, after)
            if not (rendered.plain.startswith(after.plain) and after.plain.startswith(before.plain)):
                raise UsageError("chat template: rewrites earlier turns; mark the answers with {% generation %}")
            answer = rendered[len(before) : len(after)]
            ends = [stop for _, stop, id in self._control_tokens.find(answer) if id in self.stops.ids]
            stop = len(before) + (ends[0] if ends else len(answer))
            pieces += [rendered[last : len(before)], rendered[len(before) : stop].marked(WRITTEN)]
            last = stop
        return MarkedText("").join([*pieces, rendered[last:]])

    @cached_property
    def stops(self) -> StopSequences:
        """Return what ends an answer: the first control token after it, or else the text that begins the next turn."""
        question, answer, again = PROBES
        turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        ids, texts = [*self.tokenizer.special_tokens.ends], list[str]()
        for messages in (turns, [*turns, {"role": "user", "content": again}]):
            try:
                text = self.render(messages, add_generation_prompt=False)
            except UsageError:  # some templates refuse these turns
                continue
            start, stop = text.plain.rfind(answer) + len(answer), text.plain.rfind(again)
            after = text[start : stop if stop > start else len(text)]
            found = next(self._control_tokens.find(after), None)
            if found is not None:
                ids.append(found[2])
            elif stop > start:
                texts.append(after.plain.rstrip() or after.plain)
        return StopSequences(tuple(dict.fromkeys(ids)), tuple(text for text in texts if text))


def _up_to(message: Message, text: MarkedText) -> MarkedText:
    """Return what a template writes before an answer that is the first message."""
    content = message.get("content")
    start = text.plain.rfind(content.strip()) if isinstance(content, str) else 0
    return text[: max(0, start)]


def _message(message: Message, number: int) -> Value:
    """Return a message as a template value: a known role is trusted, the content never."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise UsageError(f"chat: message {number}: want a mapping with a role and a content, got {brief(message)}")
    if not any(key in message for key in ("content", "tool_calls")):
        raise UsageError(f"chat: message {number}: want a content, got the keys {', '.join(map(str, message))[:80]}")
    value = value_of(message)
    assert isinstance(value, dict)
    return value | {MarkedText("role"): trusted(message["role"])} if message["role"] in ROLES else value


# --- loading templates ------------------------------------------------------------------------------------------------


def load_template(folder: Path) -> str | None:
    """Return the chat template in a folder, from its own file or from the tokenizer's config, or None."""
    path = next((path for name in (TEMPLATE, TOKENIZER_CONFIG) if (path := folder / name).is_file()), None)
    return None if path is None else parse_template({path.name: read_text(path)}, folder)


def parse_template(texts: Mapping[str, str], folder: Path) -> str | None:
    """Return the chat template in the texts of a folder's files, or None; `folder` is for messages."""
    if TEMPLATE in texts or TOKENIZER_CONFIG not in texts:
        return texts.get(TEMPLATE)
    found = parse_table(texts[TOKENIZER_CONFIG], str(folder / TOKENIZER_CONFIG)).get("chat_template")
    if isinstance(found, list):  # several named templates
        named = [entry for entry in found if isinstance(entry, dict)]
        found = next((entry.get("template") for entry in named if entry.get("name") == "default"), None)
    return found if isinstance(found, str) else None


def template_control_tokens(name: str) -> tuple[str, ...]:
    """Return the control tokens that a built-in template needs; none for a file."""
    return BUILTIN[name][1] if name in BUILTIN else ()


def find_template(name: str, tokenizer: Tokenizer) -> str:
    """Return a template by name or file; the tokenizer must have a built-in template's control tokens."""
    if name not in BUILTIN:
        if Path(name).is_file():
            return read_text(Path(name))
        raise UsageError(f"template: want a file or one of {', '.join(BUILTIN)}, got {name!r}{hint(name, BUILTIN)}")
    source, tokens = BUILTIN[name]
    missing = [token for token in tokens if token not in tokenizer.special]
    if missing:
        raise UsageError(f"template {name}: this tokenizer has no token {', '.join(missing)}; plain needs none")
    return source
