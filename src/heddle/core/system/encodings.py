"""Encodings of text files: UTF-8, or what a byte-order mark (BOM) or the user says; line ends are those of Unix."""

import codecs

BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",  # before UTF-16, whose mark is the first half of this one
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}


def detect_encoding(head: bytes) -> tuple[str, int]:
    """Return the encoding of a file by its first bytes, and the length of its byte-order mark."""
    for mark, encoding in BYTE_ORDER_MARKS.items():
        if head.startswith(mark):
            return encoding, len(mark)
    return "utf-8", 0


def decode_text(data: bytes) -> str:
    """Return the text of a file's bytes."""
    encoding, mark = detect_encoding(data)
    return data[mark:].decode(encoding).replace("\r\n", "\n").replace("\r", "\n")


def is_encoding(name: str) -> bool:
    """Tell whether Python knows an encoding of text by this name."""
    try:
        "".encode(name)
    except (LookupError, ValueError):
        return False
    return True
