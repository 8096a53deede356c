"""Check: the laws over every part that a module defines, each in a small model; `heddle check FILE.py` prints them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

from heddle.core import Config, ConfigError, HeddleError, decode, encode, first_line, replace
from heddle.models.laws.laws import OF_DOCUMENTS, OF_MODELS, OF_STATES, OF_THE_PAST, BrokenLaw, Law, refuses_to_step
from heddle.models.laws.small_models import FAMILIES
from heddle.models.networks import EncoderConfig, LanguageModelConfig, ModelConfig

EXAMPLES = "EXAMPLES"  # what a module calls its list of configs whose fields have no defaults
MAY_REFUSE = (*OF_DOCUMENTS, *OF_STATES)

Verdict = Literal["holds", "refused", "broken"]


@dataclass(frozen=True)
class CheckedLaw:
    """One law over one part: whether it holds; a part may refuse documents or a state in one clear line."""

    part: str
    law: str
    verdict: Verdict
    message: str = ""


def check_module(module: ModuleType) -> Iterator[CheckedLaw]:
    """Check every config with a kind that a module defines; parts by all laws, others by their way through JSON."""
    found = {cls: None for cls in vars(module).values() if _defined_in(module, cls)}
    examples = {type(one): one for one in vars(module).get(EXAMPLES, ()) if isinstance(one, Config)}
    for cls in found:
        try:
            config = examples.get(cls) or cls()
        except (TypeError, ConfigError) as error:
            reason = f"{first_line(error)}; give an example: {EXAMPLES} = [{cls.__name__}(...)]"
            yield CheckedLaw(str(cls.kind), "has an example", "broken", reason)
            continue
        yield from _check(config)


def _defined_in(module: ModuleType, cls: object) -> bool:
    return (
        isinstance(cls, type)
        and issubclass(cls, Config)
        and cls.__module__ == module.__name__
        and cls.__dict__.get("kind") is not None
    )


def _check(config: Config) -> Iterator[CheckedLaw]:
    kind = str(config.kind)
    homes = [put for family, put in FAMILIES.items() if isinstance(config, family)]
    if not homes:
        yield _outcome(kind, _survives_json, config)
        return
    try:
        model = _home(homes[-1], config)
    except Exception as error:
        yield CheckedLaw(kind, "builds", "broken", _words(error))
        return
    for law in _laws_of(model):
        yield _outcome(kind, law, model)


def _home(put: Callable[[Any], ModelConfig], config: Config) -> ModelConfig:
    """Return a small model around a part: one that sees the past or, where the part refuses that, all."""
    model = put(config)
    try:
        model.build()
    except ConfigError as error:
        if not error.field.endswith("sight") or not isinstance(model, LanguageModelConfig):
            raise
        model = replace(model, sight="all")
        model.build()
    return model


def _laws_of(model: ModelConfig) -> tuple[Law, ...]:
    if isinstance(model, EncoderConfig):
        return (_survives_json,)
    if isinstance(model, LanguageModelConfig) and model.sight == "all":
        return (*OF_MODELS, refuses_to_step)
    return (*OF_MODELS, *OF_THE_PAST, *OF_STATES)


def _survives_json(config: Config) -> None:
    """A config goes to plain data and comes back the same."""
    if decode(type(config), encode(config)) != config:
        raise BrokenLaw("the config changes on its way through JSON")


def _outcome(kind: str, law: Law, config: Any) -> CheckedLaw:
    name = law.__name__.strip("_").replace("_", " ")
    try:
        law(config)
    except BrokenLaw as error:
        return CheckedLaw(kind, name, "broken", str(error))
    except HeddleError as error:
        return CheckedLaw(kind, name, "refused" if law in MAY_REFUSE else "broken", str(error))
    except Exception as error:  # whatever the user's own code raises
        return CheckedLaw(kind, name, "broken", _words(error))
    return CheckedLaw(kind, name, "holds")


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, HeddleError) else f"{type(error).__name__}: {first_line(error)}"
