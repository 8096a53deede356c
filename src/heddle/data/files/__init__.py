"""Files: finding them, opening compressed text as UTF-8, and why one is left out."""

from heddle.data.files.decompress import (
    FileStamp,
    UnreadableFile,
    decoded,
    file_extension,
    file_stamp,
    find_files,
    open_text,
    printable_path,
    read_faults,
)
from heddle.data.files.skip_reason import SkipReason
