"""System: what the machine offers: files read and replaced safely, device and dtype, the compiler and its cache."""

from heddle.core.system.atomic_folder import lock_folder, new_folder, temporary_folder
from heddle.core.system.batch_invariance import BATCH_INVARIANCE, BLOCK, BatchInvariance, batch_invariant
from heddle.core.system.compile_cache import compiler_fault, enable_compile_cache
from heddle.core.system.cooperation import is_shared, pause, shared_thread
from heddle.core.system.cores import CoreWatch, threads_are_chosen, threads_for, usable_cores
from heddle.core.system.device import Hardware, choose_hardware, peak_flops
from heddle.core.system.encodings import decode_text, detect_encoding, is_encoding
from heddle.core.system.files import (
    check_writable,
    open_to_append,
    parse_json,
    parse_overrides,
    parse_table,
    parse_yaml,
    read_config,
    read_table,
    read_text,
    replacing,
    sync_folder,
    to_yaml,
    write_json,
    write_text,
)
from heddle.core.system.memory import keep_freed_memory
