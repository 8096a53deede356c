"""The laws of the state hold for every model that can go on from one; the others refuse."""

from collections.abc import Callable
from typing import Any

import pytest
from laws.cases import Case, cases, pairs
from laws.laws import OF_FRESH_STARTS, OF_STATES, refuses_to_step

from heddle.core import find
from heddle.nn.layers import SlidingWindowConfig
from heddle.nn.state import kv_cache as cache

CASES = cases()
PAIRS = pairs()
WINDOWED = [c for c in CASES if c.stepwise and find(c.config, SlidingWindowConfig)]
OF_PAIRS = tuple(law for law in OF_STATES if law not in OF_FRESH_STARTS)  # a source is never forgotten


@pytest.mark.parametrize("case", [c for c in CASES if c.stepwise], ids=lambda c: c.name)
@pytest.mark.parametrize("law", OF_STATES, ids=lambda law: law.__name__)
def test_law_of_states_holds(law: Callable[[Any], None], case: Case) -> None:
    law(case.config)


@pytest.mark.parametrize("case", PAIRS, ids=lambda c: c.name)
@pytest.mark.parametrize("law", OF_PAIRS, ids=lambda law: law.__name__)
def test_law_of_states_holds_for_the_decoder_of_a_pair(law: Callable[[Any], None], case: Case) -> None:
    law(case.config)


@pytest.mark.parametrize("case", WINDOWED, ids=lambda c: c.name)
@pytest.mark.parametrize("law", OF_STATES, ids=lambda law: law.__name__)
def test_law_of_states_holds_where_a_window_forgets(
    law: Callable[[Any], None], case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "SLACK", 1)  # so that rows are longer than what the ring holds
    law(case.config)


@pytest.mark.parametrize("case", [c for c in CASES if not c.stepwise], ids=lambda c: c.name)
def test_a_model_that_sees_all_refuses_a_state(case: Case) -> None:
    refuses_to_step(case.config)
