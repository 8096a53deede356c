"""Core: what knows nothing of language. Configs, files, errors, seeds, device, shapes and what is kept of compiling."""

from heddle.core.config import (
    Change,
    Config,
    Edit,
    decode,
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
from heddle.core.device import Hardware, choose_hardware, peak_flops
from heddle.core.errors import (
    ConfigError,
    DamageError,
    DataError,
    EnvironmentFault,
    HeddleError,
    MissingExtra,
    UsageError,
    brief,
    nearest,
)
from heddle.core.files import parse_json, parse_yaml, read_config, read_text, to_yaml, write_json
from heddle.core.kept import keep_compiled
from heddle.core.numbers import bounded_exp
from heddle.core.seeds import Purpose, generator, key, numpy_generator

VERSION = "0.1.0"

__all__ = [
    "VERSION",
    "Change",
    "Config",
    "ConfigError",
    "DamageError",
    "DataError",
    "Edit",
    "EnvironmentFault",
    "Hardware",
    "HeddleError",
    "MissingExtra",
    "Purpose",
    "UsageError",
    "bounded_exp",
    "brief",
    "choose_hardware",
    "decode",
    "diff",
    "encode",
    "fields_of",
    "find",
    "generator",
    "keep_compiled",
    "key",
    "kinds",
    "nearest",
    "numpy_generator",
    "override",
    "parse_json",
    "parse_yaml",
    "part",
    "peak_flops",
    "read_config",
    "read_text",
    "replace",
    "settings",
    "swap",
    "to_yaml",
    "walk",
    "write_json",
]
