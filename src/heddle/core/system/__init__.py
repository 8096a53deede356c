"""System: what the machine offers: files read and replaced safely, device and dtype, the compiler and its cache."""

from heddle.core.system.compile_cache import compiler_fault, enable_compile_cache
from heddle.core.system.device import Hardware, choose_hardware, peak_flops
from heddle.core.system.encodings import check_encoding, decode_text, detect_encoding
from heddle.core.system.files import (
    check_writable,
    parse_json,
    parse_overrides,
    parse_yaml,
    read_config,
    read_table,
    read_text,
    replacing,
    sync_folder,
    to_yaml,
    write_json,
)
