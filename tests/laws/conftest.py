"""Which laws run in `make test` over the variants of Narang et al., whose parts meet all laws there by themselves.

Every law runs over every variant in `make reliability`, like all that is marked `full`.
"""

import pytest

VARIANT = "preset=narang/"
QUICK = (
    "keeps_shape",
    "every_weight_gets_gradient",
    "never_sees_the_future",
    "stepwise_is_full",
    "survives_encoding",
    "a_padded_source_is_the_bare_one",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if VARIANT in item.name and not any(law in item.name for law in QUICK):
            item.add_marker(pytest.mark.full)
