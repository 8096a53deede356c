"""Terminal escapes: control characters, as a model or a file name may hold them, shown instead of obeyed."""

import re

# C0 and C1 controls, DEL, line separators, controls of writing direction, and half characters (of undecodable names).
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escaped(text: str) -> str:
    """Show control characters as escapes; above ASCII in the form of JSON, so that a JSON line stays one."""
    return CONTROL.sub(
        lambda found: f"\\x{ord(found[0]):02x}" if found[0] < "\x7f" else f"\\u{ord(found[0]):04x}", text
    )
