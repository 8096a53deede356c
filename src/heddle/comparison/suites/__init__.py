"""Suites: what is compared: a base run, variants as edits of it, a budget, seeds and arms."""

from heddle.comparison.suites.builtin import SUITES, changed, choose_suite, find_suite, register_suite
from heddle.comparison.suites.suite import (
    RATES,
    VALIDATION_ROWS,
    ArmName,
    BudgetConfig,
    Figure,
    Suite,
    SuiteConfig,
    Variant,
    check_comparable,
    describe,
    edit_model,
    other_model,
    set_fields,
    swap_parts,
    with_settings,
)
