"""Parameter counts as their papers, releases or reference implementations have them."""

import pytest

from heddle.models import build_meta, count_parameters
from heddle.models.presets import preset

COUNTS = {
    "gpt": 116_534_784,
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "llama2-7b": 6_738_415_616,
    "llama3-8b": 8_030_261_248,
    "mistral-7b": 7_241_732_096,
    "qwen3-0.6b": 596_049_920,
    "mixtral-8x7b": 46_702_792_704,
    "bert-base": 109_482_240,
    "roberta-base": 124_645_632,
    "distilbert": 66_362_880,
    "t5-base": 222_903_552,
    "bart-base": 139_420_416,
    "vit-base-16": 86_567_656,
}


@pytest.mark.parametrize("name", COUNTS)
def test_count_is_as_published(name: str) -> None:
    assert count_parameters(build_meta(preset(name).config())) == COUNTS[name]


def test_gpt3_is_within_half_a_percent() -> None:
    assert count_parameters(build_meta(preset("gpt3-175b").config())) == pytest.approx(174.6e9, rel=0.005)


def test_the_transformers_of_2017_are_near_their_papers_millions() -> None:
    assert count_parameters(build_meta(preset("transformer_base").config())) == pytest.approx(65e6, rel=0.05)
    assert count_parameters(build_meta(preset("transformer_big").config())) == pytest.approx(213e6, rel=0.05)
