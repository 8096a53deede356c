"""The laws of the state hold for every model that can go on from one; the others refuse."""

from collections.abc import Callable

import pytest
from laws.cases import Case, cases
from laws.laws import OF_STATES, refuses_to_step

from heddle.models import LanguageModelConfig

CASES = cases()


@pytest.mark.parametrize("case", [c for c in CASES if c.stepwise], ids=lambda c: c.name)
@pytest.mark.parametrize("law", OF_STATES, ids=lambda law: law.__name__)
def test_law_of_states_holds(law: Callable[[LanguageModelConfig], None], case: Case) -> None:
    law(case.config)


@pytest.mark.parametrize("case", [c for c in CASES if not c.stepwise], ids=lambda c: c.name)
def test_a_model_that_sees_all_refuses_a_state(case: Case) -> None:
    refuses_to_step(case.config)
