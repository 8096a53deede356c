"""The model's laws hold for every kind of part and every preset."""

from collections.abc import Callable
from typing import Any

import pytest
from laws.cases import Case, cases, every, missing, pairs
from laws.laws import OF_DOCUMENTS, OF_MODELS, OF_THE_PAST

from heddle.core import UsageError

CASES = cases()
PAIRS = pairs()


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@pytest.mark.parametrize("law", OF_MODELS, ids=lambda law: law.__name__)
def test_law_of_models_holds(law: Callable[[Any], None], case: Case) -> None:
    law(case.config)


@pytest.mark.parametrize("case", [c for c in CASES if c.stepwise], ids=lambda c: c.name)
@pytest.mark.parametrize("law", OF_THE_PAST, ids=lambda law: law.__name__)
def test_law_of_sight_holds(law: Callable[[Any], None], case: Case) -> None:
    law(case.config)


@pytest.mark.parametrize("case", PAIRS, ids=lambda c: c.name)
@pytest.mark.parametrize("law", OF_MODELS + OF_THE_PAST, ids=lambda law: law.__name__)
def test_law_holds_for_the_decoder_of_a_pair(law: Callable[[Any], None], case: Case) -> None:
    if law in OF_DOCUMENTS and not case.packs:
        with pytest.raises(UsageError, match="document"):
            law(case.config)
        return
    law(case.config)


def test_a_model_that_sees_all_breaks_the_law_of_the_past() -> None:
    blind = [case for case in CASES if not case.stepwise]
    assert blind
    for case in blind:
        for law in OF_THE_PAST:
            with pytest.raises(AssertionError):
                law(case.config)


def test_every_kind_and_every_preset_has_a_case() -> None:
    assert missing(every()) == []


def test_a_kind_without_a_case_is_named() -> None:
    few = [case for case in every() if case.name not in ("mixer=gru", "preset=gru_lm")]
    assert missing(few) == ["GRUConfig", "preset=gru_lm"]
