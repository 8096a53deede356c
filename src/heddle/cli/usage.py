"""Errors in what was typed, in our words: the option as it was typed, what is wanted, what was found."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

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
MENTIONED = re.compile(r"`([a-z_]+)`|\b([a-z]+(?:_[a-z]+)+)\b")  # names of options in a message of the library


def parser_message(error: typer.BadParameter, words: Sequence[str]) -> str:
    """Return what is wrong with the words of a command, for an error of the parser."""
    from heddle.core import hint, meant, nearest

    details = vars(error)
    if (option := details.get("option_name")) is not None:
        near = nearest(option, details["possibilities"] or ())
        return f"no such option: {option}{meant(near) if near else ''}"
    message = error.format_message()
    param = details.get("param")
    if not isinstance(error, typer.BadParameter) or param is None or not param.opts[0].startswith("-"):
        return message
    for pattern, words_of_ours in WANTED:
        if pattern.search(error.message):
            want = pattern.sub(words_of_ours, error.message).replace("'", "")
            found = _value(param.opts, words)
            near = hint(found, re.split(r", ", want.removeprefix("want one of "))) if "one of" in want else ""
            return f"{max(param.opts, key=len)}: {want}, got {found!r}{near}"
    return message


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

    for word in words:
        if isinstance(command, TyperGroup) and word in command.commands:
            command = cast("TyperCommand | TyperGroup", command.commands[word])
    named = [(str(param.name).rstrip("_"), max(param.opts, key=len)) for param in command.params]
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
