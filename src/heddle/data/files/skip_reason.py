"""Skip reasons: why a document, or a file, was left out."""

from enum import StrEnum


class SkipReason(StrEnum):
    """Why a document was skipped."""

    EMPTY = "empty"
    TOO_SHORT = "too_short"
    NOT_UTF8 = "not_utf8"
    BINARY = "binary"
    DUPLICATE = "duplicate"
    UNREADABLE = "unreadable"
    BAD_JSON = "bad_json"
    MISSING_FIELD = "missing_field"
    TOO_LONG = "too_long"
    BAD_TURNS = "bad_turns"  # no conversation, or none that the template takes
    SAME_ANSWERS = "same_answers"  # a preference pair whose answers are equal
    NO_ANSWER = "no_answer"  # a conversation in which the assistant says nothing
    NO_FILE = "no_file"  # a medium that is named but not there
    BAD_MEDIA = "bad_media"  # a file that is no sound, picture or array that can be used
    TOO_LARGE = "too_large"  # a picture of more pixels, or a file of more bytes, than are read
    NO_TEXT = "no_text"  # a medium without the text that belongs to it

    @property
    def words(self) -> str:
        """Return the reason as messages call it."""
        return self.replace("_", " ")

    @property
    def fault(self) -> bool:
        """Tell whether something is wrong with the document; one that is empty or left out by config is not wrong."""
        return self not in (SkipReason.EMPTY, SkipReason.TOO_SHORT, SkipReason.DUPLICATE)
