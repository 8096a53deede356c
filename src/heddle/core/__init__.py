"""Core: configs, errors, seeds, shapes, independent of language models; `core.system` has files and devices."""

from heddle import __version__ as VERSION
from heddle.core.config import (
    Config,
    decode,
    decode_value,
    encode,
    fields_of,
    find,
    kinds,
    override,
    part,
    replace,
    settings,
)
from heddle.core.edits import Change, diff, swap
from heddle.core.errors import (
    ConfigError,
    DamageError,
    DataError,
    EnvironmentFault,
    HeddleError,
    MissingExtra,
    UsageError,
    brief,
    did_you_mean,
    first_line,
    hint,
    nearest,
    system_fault,
    system_faults,
)
from heddle.core.numbers import (
    Count,
    Positive,
    Share,
    bounded_exp,
    check_at_least,
    check_share,
    within,
)
from heddle.core.seeds import Purpose, generator, key, numpy_generator
