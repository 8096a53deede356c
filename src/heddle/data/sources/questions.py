"""Questions with all answers that count as right, as rows of WebQuestions (Berant et al. 2013) or SQuAD hold them."""

from dataclasses import dataclass
from typing import Any

from heddle.core import DataError

QUESTION = ("question", "qText", "text")  # the fields that hold a question, the first that there is


@dataclass(frozen=True)
class Question:
    """A question, its right answers, and its context if it has one; no answers: there are none, or they are unknown."""

    text: str
    answers: tuple[str, ...]
    context: str | None
    origin: str


def question_of(row: dict[str, Any], origin: str) -> Question:
    """Return the question of a row, in any of the forms in use."""
    text = next((row[name] for name in QUESTION if name in row), None)
    if not isinstance(text, str) or not text.strip():
        found = ", ".join(map(str, row))[:120] or "none"
        raise DataError(f"{origin}: want a question in {' or '.join(map(repr, QUESTION))}, found the fields {found}")
    context = row.get("context")
    if not isinstance(context, str | None):
        raise DataError(f"{origin}: want a text in 'context', found {str(context)[:40]!r}")
    answers = _answers(row)
    if answers is None or not all(isinstance(one, str) for one in answers):
        raise DataError(f"{origin}: want a list of texts in 'answers', found {str(row.get('answers'))[:60]!r}")
    return Question(text, tuple(dict.fromkeys(one for one in answers if one.strip())), context, origin)


def _answers(row: dict[str, Any]) -> list[Any] | None:
    """Return the texts of answers, in any of the forms in use."""
    match row:
        case {"answers": {"text": list(texts)}} | {"answers": list(texts)} if not any(
            isinstance(one, dict) for one in texts
        ):
            return list(texts)
        case {"answers": list(found)} if all(isinstance(one, dict) for one in found):
            return [one.get("text") for one in found]
        case {"answer": str(text)}:
            return [text]
        case _ if "answers" not in row and "answer" not in row:
            return []
    return None
