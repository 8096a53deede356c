"""Settings for a task that an imported model was published with: T5's prefixes, BART's and Marian's beam search."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from heddle.checkpoints import summarization_settings, translation_settings
from heddle.decoding import GenerationOptions, generation_config
from heddle.decoding.generation import GenerationConfig
from heddle.text.tokenizers import Tokenizer

BEAM_SEARCH = ("beams", "length_penalty", "early_stopping")
OTHER_STRATEGIES = ("temperature", "top_k", "top_p", "min_p", "typical", "contrast", "strategy")


@dataclass(frozen=True)
class TaskSettings:
    """The text before each source, and the generation options."""

    prefix: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, found: Mapping[str, Any], start: int) -> "TaskSettings":
        """Return those in the keys of a generation config; a run has none, as its tokenizer has the prefix.

        Their lengths count the `start` tokens that begin a target, which ours do not.
        """
        names = {"num_beams": "beams", "length_penalty": "length_penalty", "no_repeat_ngram_size": "no_repeat_ngram"}
        options = {own: found[name] for name, own in names.items() if isinstance(found.get(name), int | float)}
        sizes = {"max_length": "max_tokens", "min_length": "min_tokens"}
        options |= {own: max(0, found[name] - start) for name, own in sizes.items() if isinstance(found.get(name), int)}
        if "beams" in options:
            early = found.get("early_stopping")
            options["early_stopping"] = "full" if early is True else "never" if early == "never" else "heuristic"
        if found.get("forced_eos_token_id") is not None and "max_tokens" in options:
            options["forced_end"] = True
        return cls(str(found.get("prefix") or ""), options)

    def generation_config(self, options: GenerationOptions, defaults: Mapping[str, Any]) -> GenerationConfig:
        """Return how to generate: by the options that are given, then these settings, then the defaults.

        Beam search is left to who asks for sampling, or for one beam.
        """
        given = {name: value for name, value in options.items() if value is not None}
        chosen: Any = {**defaults, **self.options, **given}
        other = "beams" not in given and any(name in given for name in OTHER_STRATEGIES)
        if other or chosen["beams"] == 1:
            chosen = {name: value for name, value in chosen.items() if name in given or name not in BEAM_SEARCH}
        return generation_config(chosen)


def summary_settings_of(settings: Mapping[str, Any], tokenizer: Tokenizer) -> TaskSettings:
    """Return a model's own settings for summaries."""
    return TaskSettings.of(summarization_settings(settings), len(tokenizer.special_tokens.decoder_start))


def translation_settings_of(settings: Mapping[str, Any], tokenizer: Tokenizer, task: str | None) -> TaskSettings:
    """Return a model's own settings for translation, of one of its tasks, such as en_to_de."""
    return TaskSettings.of(translation_settings(settings, task), len(tokenizer.special_tokens.decoder_start))
