"""Groups of beams shun what earlier groups took at the same step, and the first is a search by itself."""

import pytest
from decoding.reference import END, Plain, find, model, named, requests

from heddle.core import ConfigError, replace
from heddle.decoding import generation_config
from heddle.decoding.generation import GenerationConfig, generate
from heddle.decoding.sampling import PenaltyConfig
from heddle.decoding.search import BeamSearch

HOW = GenerationConfig(
    max_tokens=5, stop=(END,), begin=END, samples=3,
    strategy=BeamSearch(beams=6, groups=3, diversity=0.7, length_penalty=0.6),
)  # fmt: skip


@pytest.mark.parametrize("choice", [
    BeamSearch(beams=6, groups=3, diversity=0.7, length_penalty=0.6),
    BeamSearch(beams=4, groups=4, diversity=2.0),
    BeamSearch(beams=4, groups=2, diversity=0.1, length_penalty=1.0),
])  # fmt: skip
@pytest.mark.parametrize("name", ["attention", "recurrent", "pair-attention"])
def test_groups_are_those_of_a_plain_search(name: str, choice: BeamSearch) -> None:
    made, config = model(name, 4), replace(HOW, strategy=choice)
    for request, found in zip(requests(made), find(made, config), strict=True):
        assert [tuple(h.ids) for h in found] == Plain(made, config, request).beams()
        assert len({tuple(h.ids) for h in found}) == len(found)


def test_groups_with_penalties_and_a_least_length_are_those_of_a_plain_search() -> None:
    config = replace(HOW, min_tokens=2, penalties=PenaltyConfig(repetition=1.3, frequency=0.2))
    made = model("pair-attention", 5)
    for request, found in zip(requests(made), find(made, config), strict=True):
        assert [tuple(h.ids) for h in found] == Plain(made, config, request).beams()


def test_the_first_group_is_a_search_by_itself_so_groups_never_lose_its_best() -> None:
    made = model("pair-attention", 7, vocab=40)
    config = replace(HOW, samples=2, strategy=BeamSearch(beams=6, groups=3, diversity=5.0))
    alone = find(made, replace(config, strategy=BeamSearch(beams=2)))
    for one, all_ in zip(alone, find(made, config), strict=True):
        assert all_[0].score >= one[0].score - 1e-12  # other batch sizes may round otherwise


def test_diversity_makes_lists_more_diverse() -> None:
    made = model("pair-attention", 7, vocab=40)

    def firsts(choice: BeamSearch) -> int:
        """Count the different first tokens of all lists."""
        found = find(made, GenerationConfig(max_tokens=6, stop=(END,), begin=END, samples=4, strategy=choice))
        return sum(len({h.ids[0] for h in best}) for best in found)

    plain, diverse = BeamSearch(beams=4), BeamSearch(beams=4, groups=4, diversity=9.0)
    assert firsts(diverse) > firsts(plain)


def test_rows_side_by_side_are_rows_alone_in_groups_too() -> None:
    made = model("pair-attentive", 2)
    assert named(find(made, HOW)) == [named(find(made, HOW, [row]))[0] for row in range(3)]


def test_groups_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="groups: want a number that divides the 4 beams"):
        BeamSearch(beams=4, groups=3, diversity=1.0)
    with pytest.raises(ConfigError, match="diversity: want above 0"):
        BeamSearch(beams=4, groups=2)
    with pytest.raises(ConfigError, match="diversity: want 0"):
        BeamSearch(beams=4, diversity=1.0)


def test_the_words_of_the_library_mean_the_same() -> None:
    made = model("attention", 3)
    config = generation_config({"beams": 4, "groups": 2, "diversity": 1.5, "max_tokens": 5}).with_special_tokens(
        END, (END,)
    )
    assert generate(made, [[]], config)[0] == find(made, config, [0])[0][0].ids
