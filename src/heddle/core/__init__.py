"""Core: what knows nothing of language: configs, errors, seeds, shapes; `core.system` has files and devices."""

from heddle import __version__ as VERSION
from heddle.core.config import (
    Change,
    Config,
    Edit,
    decode,
    decode_value,
    diff,
    encode,
    fields_of,
    find,
    kinds,
    override,
    part,
    replace,
    settings,
    swap,
    walk,
)
from heddle.core.errors import (
    ConfigError,
    DamageError,
    DataError,
    EnvironmentFault,
    HeddleError,
    MissingExtra,
    UsageError,
    brief,
    first_line,
    hint,
    meant,
    nearest,
    system_fault,
    system_faults,
)
from heddle.core.numbers import bounded_exp, check_at_least, check_at_most, check_share
from heddle.core.seeds import Purpose, generator, key, numpy_generator
