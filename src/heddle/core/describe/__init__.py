"""Describe: what configs tell about themselves: the sentence of each field, its type and default, what a slot holds."""

from heddle.core.config import field_types
from heddle.core.describe.fields import (
    defaults,
    first_sentence,
    members,
    plain_hint,
    reachable,
    scalar_hint,
    sentences,
    slots,
)
