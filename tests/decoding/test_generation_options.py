"""Words become one way of choosing; those that contradict each other are refused by name."""

import pytest

from heddle.core import ConfigError, HeddleError, kinds
from heddle.decoding import GenerationOptions, generation_config
from heddle.decoding.generation import (
    ContrastiveSearch,
    DecodingStrategy,
    GenerationConfig,
    GreedySearch,
    MultinomialSampling,
)
from heddle.decoding.search import BeamSearch


def test_every_kind_of_choice_is_filed() -> None:
    own = {name for name, kind in kinds(DecodingStrategy).items() if kind.__module__.startswith("heddle.")}
    assert own == {"greedy", "sampling", "beams", "contrastive"}


@pytest.mark.parametrize(
    ("options", "choice"),
    [
        ({}, GreedySearch()),
        ({"temperature": 0.0, "seed": 3}, GreedySearch()),
        ({"temperature": 0.0, "top_p": 1.0, "min_p": 0.0, "typical": 1}, GreedySearch()),  # which filter nothing
        ({"temperature": 0.7, "seed": 3}, MultinomialSampling(temperature=0.7, seed=3)),
        ({"top_p": 0.9}, MultinomialSampling(top_p=0.9)),
        ({"typical": 0.9, "temperature": None}, MultinomialSampling(typical=0.9)),
        ({"beams": 1, "length_penalty": 0.0}, GreedySearch()),
        ({"beams": 4, "length_penalty": 0.6, "temperature": 0.0}, BeamSearch(beams=4, length_penalty=0.6)),
        ({"beams": 4, "groups": 2, "diversity": 0.5}, BeamSearch(beams=4, groups=2, diversity=0.5)),
        ({"contrast": 0.6}, ContrastiveSearch(top_k=4, contrast=0.6)),
        ({"contrast": 0.5, "top_k": 8}, ContrastiveSearch(top_k=8, contrast=0.5)),
    ],
)
def test_words_mean_one_choice(options: GenerationOptions, choice: DecodingStrategy) -> None:
    assert generation_config(options) == GenerationConfig(strategy=choice)


def test_amounts_and_penalties_are_kept() -> None:
    config = generation_config(
        {
            "max_tokens": 9,
            "min_tokens": 2,
            "samples": 3,
            "temperature": 1.0,
            "seconds": 1.5,
            "logprobs": 2,
            "bias": {4: -1.0},
        }
    )
    assert (config.max_tokens, config.min_tokens, config.samples, config.seconds, config.logprobs) == (
        9,
        2,
        3,
        1.5,
        2,
    )
    assert config.penalties.bias == ((4, -1.0),)
    assert generation_config({"repetition": 1.2, "presence": 0.1, "frequency": 0.2}).penalties.needs_history
    assert not config.penalties.needs_history


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beams": 2, "temperature": 1.0}, "temperature: not used by beam search"),
        ({"beams": 2, "top_k": 5}, "top_k: not used by beam search"),
        ({"beams": 2, "contrast": 0.5}, "contrast: not used by beam search"),
        ({"beams": 2, "samples": 3}, "samples: want at most the 2 beams"),
        ({"beams": 5, "groups": 2}, "groups: want a number that divides the 5 beams"),
        ({"beams": 4, "diversity": 0.5}, "diversity: want 0 where all beams are one group"),
        ({"length_penalty": 1.0}, "length_penalty: only used by beam search"),
        ({"contrast": 0.5, "temperature": 1.0}, "temperature: not used by contrastive search"),
        ({"contrast": 0.5, "top_p": 0.9}, "top_p: not used by contrastive search"),
        ({"contrast": 0.5, "samples": 2}, "samples: want 1 with contrast"),
        ({"samples": 2}, "samples: greedy decoding gives one text"),
        ({"temperature": 0.0, "top_k": 5}, "top_k: has no effect with temperature 0"),
        ({"temperature": 0, "top_p": 0.9}, "top_p: has no effect with temperature 0"),
        ({"temperature": 0, "top_p": 1.5}, "top_p: want more than 0 and at most 1"),
        ({"bias": [(3, 1.0)]}, "bias: want a dict"),
        ({"bias": {3: "1"}}, "bias: want a number for each token"),
        ({"cache": 8}, "cache: want one of full, int8, got 8"),
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens: want at most max_tokens, 3"),
        ({"bias": {" word": -5.0}}, "bias: want ids"),
        ({"bias": {3: float("inf")}}, "bias: want a number for id 3"),
        ({"temprature": 1.0}, "did you mean 'temperature'"),
        ({"beams": 3, "compile": "on"}, "compile: 'on' is not supported"),
        ({"contrast": 0.6, "compile": "on"}, "compile: 'on' is not supported"),
    ],
)
def test_words_that_contradict_each_other_are_refused(options: GenerationOptions, message: str) -> None:
    with pytest.raises(HeddleError, match=message):
        generation_config(options)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 2.5),
        ("max_tokens", "5"),
        ("temperature", "1"),
        ("top_k", 2.5),
        ("seed", "a"),
        ("beams", [2]),
        ("samples", True),
    ],
)
def test_a_word_that_is_no_number_is_named(name: str, value: object) -> None:
    options: GenerationOptions = {name: value}  # type: ignore[misc]
    with pytest.raises(ConfigError, match=f"^{name}: want a (whole )?number, got"):
        generation_config(options)
