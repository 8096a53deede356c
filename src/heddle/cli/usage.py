"""Errors in what was typed, in our words: the option as it was typed, what is wanted, what was found."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from heddle.core import HeddleError

# The base of usage errors. Some releases of typer bundle their own click, so it is found through typer.
ClickException = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[2])

WANTED = (  # what the parser says, and what we say
    (re.compile(r"Input should be a valid integer.*"), "want a whole number"),
    (re.compile(r"Input should be a valid number.*"), "want a number"),
    (re.compile(r"Input should be greater than or equal to (\S+)"), r"want at least \1"),
    (re.compile(r"Input should be less than or equal to (\S+)"), r"want at most \1"),
    (re.compile(r"(?:Value error, )?'.*' is not one of (.*)\."), r"want one of \1"),
)
SENTENCES = (
    (re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)"), r"unexpected argument: \1"),
    (re.compile(r"Missing argument '(.*)'\."), r"missing argument: \1"),
)
MENTIONED = re.compile(r"`([a-z_]+)`|\b([a-z]+(?:_[a-z]+)+)\b")  # names of options in a message of the library


def parser_message(error: typer.BadParameter, command: TyperGroup, words: Sequence[str]) -> str:
    """Return what is wrong with the words of a command, for an error of the parser."""
    from heddle.core import hint

    details, message = vars(error), error.format_message()
    if (option := details.get("option_name")) is not None:
        return _option_message(option, message, details)
    if (unknown := re.match(r"No such command '(.*?)'", message)) is not None:
        group = _command(command, words)
        known = group.commands if isinstance(group, TyperGroup) else ()
        return f"no such command: {unknown[1]!r}{hint(unknown[1], known)}"
    param = details.get("param")
    if isinstance(error, typer.BadParameter) and param is not None and param.opts[0].startswith("-"):
        return _value_message(error.message, param.opts, words) or message
    for pattern, ours in SENTENCES:
        message = pattern.sub(ours, message)
    return message


def _option_message(option: str, message: str, details: Mapping[str, Any]) -> str:
    """Name an option that there is not, and the nearest by its letters, or one whose value is missing."""
    from heddle.core import did_you_mean, nearest

    if "possibilities" not in details:
        return f"{option}: {'want a value, got none' if 'requires' in message else 'takes no value'}"
    names = {name.lstrip("-"): name for name in details["possibilities"] or ()}
    near = nearest(option.lstrip("-"), names)
    return f"no such option: {option}{did_you_mean(names[near]) if near else ''}"


def _value_message(message: str, opts: Sequence[str], words: Sequence[str]) -> str | None:
    """Say what an option wants and what was typed; None for what the parser says in other words than we know."""
    from heddle.core import hint

    for pattern, ours in WANTED:
        if pattern.search(message):
            want = pattern.sub(ours, message).replace("'", "")
            found = _value(opts, words)
            near = hint(found, want.removeprefix("want one of ").split(", ")) if "one of" in want else ""
            return f"{max(opts, key=len)}: {want}, got {found!r}{near}"
    return None


def _command(command: TyperCommand | TyperGroup, words: Sequence[str]) -> TyperCommand | TyperGroup:
    """Return the command that the words name, or the last group of it."""
    for word in words:
        if isinstance(command, TyperGroup) and word in command.commands:
            command = cast("TyperCommand | TyperGroup", command.commands[word])
    return command


def _value(opts: Sequence[str], words: Sequence[str]) -> str:
    """Return the last value that an option was given."""
    found = ""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name in opts:
            found = value if equals else following
    return found


def typed_names(error: "HeddleError", command: TyperCommand | TyperGroup, words: Sequence[str]) -> str:
    """Return the message of an error, with fields under the names of the options that the command has for them."""
    from heddle.core import ConfigError

    named = [(str(param.name).rstrip("_"), max(param.opts, key=len)) for param in _command(command, words).params]
    options = {name: option for name, option in named if option.startswith("-")}
    message = str(error)
    field = error.field if isinstance(error, ConfigError) else message.partition(": ")[0]
    name, _, inner = field.partition(".")
    if name not in options or field in words or (inner and not isinstance(error, ConfigError)):
        return message  # about a file or a key that was typed, perhaps of an option's name
    wanted, got, found = message.removeprefix(field).partition(", got ")
    return f"{options[name]} {inner.replace('.', ' ')}".rstrip() + _spelled(wanted, options) + got + found


def _spelled(wanted: str, options: Mapping[str, str]) -> str:
    """Write the options that a message speaks of as they are typed."""
    return MENTIONED.sub(lambda found: options.get(found[1] or found[2], found[0]), wanted)
