"""Annotated text: CoNLL files, a word and its tag in each line, and SQuAD files of questions about contexts."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from heddle.core import DataError, part, within
from heddle.core.system import parse_json
from heddle.data.files import UnreadableFile, file_stamp, find_files, open_text, printable_path
from heddle.data.sources.documents import Document, DocumentCounter, FileStamp, SourceConfig, check_text
from heddle.data.sources.labels import Answers, Span, as_iob2, tagged_text
from heddle.data.sources.records import Encoding, json_items, whole_lines

LONGEST = 1 << 20  # bytes of a line of CoNLL
LARGEST = 1 << 28  # bytes of a SQuAD file, which is parsed whole
QUESTION = ("question", "qText", "text")  # the fields that hold a question, the first that there is
BOUNDARY = "-DOCSTART-"  # the word that begins a document in CoNLL-2003
Longest = Annotated[int, within("16 to 2**28 bytes", lambda longest: 16 <= longest <= 1 << 28)]


@part("conll")
class ConllSource(SourceConfig):
    """CoNLL: a word in each line with its tag in a column, a blank line after each sentence; IOB1 becomes IOB2.

    A sentence is a document: its words, with spaces between them. Sentences between two lines -DOCSTART- stay on one
    side of a split.

    path: a file, a folder or a glob.
    word: the column of the word, from 0.
    tag: the column of the tag; -1: the last.
    longest: most bytes of a line; a longer one is an error.
    encoding: how the files are encoded, such as latin-1; None: UTF-8, or as a byte-order mark says.
    """

    path: str
    word: int = 0
    tag: int = -1
    longest: Longest = LONGEST
    encoding: Encoding | None = None

    @property
    def labelled(self) -> bool:
        """Tell that its documents have labels."""
        return True

    def documents(self, counter: DocumentCounter) -> Iterator[Document]:
        """Yield a document for each sentence."""
        for path in find_files(self.path):
            name = printable_path(path)
            try:
                with open_text(path, self.encoding) as stream:
                    yield from self._sentences(enumerate(whole_lines(stream, self.longest), 1), name, counter)
            except UnreadableFile as fault:
                counter.see()
                counter.skip(fault.reason, name)

    def _sentences(
        self, lines: "Iterator[tuple[int, bytes | None]]", name: str, counter: DocumentCounter
    ) -> Iterator[Document]:
        words: list[str] = []
        tags: list[str] = []
        width = first = parts = 0
        for number, raw in lines:
            cells = self._cells(raw, f"{name}:{number}")
            if cells and cells[0] != BOUNDARY:
                first, width = (first if words else number), width or len(cells)
                if len(cells) != width:
                    raise DataError(
                        f"{name}:{number}: want {width} columns, as in the lines before, found {len(cells)}"
                    )
                word, tag = self._columns(cells, f"{name}:{number}")
                words.append(word)
                tags.append(tag)
                continue
            if words:
                yield self._document(words, tags, f"{name}:{first}", parts, counter)
                words, tags = [], []
            parts += bool(cells)
        if words:
            yield self._document(words, tags, f"{name}:{first}", parts, counter)

    def _cells(self, raw: bytes | None, origin: str) -> list[str]:
        if raw is None:
            raise DataError(f"{origin}: want at most {self.longest} bytes in a line, found more")
        try:
            line = raw.decode().strip("\r\n ")
        except UnicodeDecodeError:
            raise DataError(f"{origin}: want UTF-8 text, found other bytes") from None
        return [cell.strip() for cell in line.split("\t")] if "\t" in line else line.split()

    def _columns(self, cells: list[str], origin: str) -> tuple[str, str]:
        for column in (self.word, self.tag):
            if not -len(cells) <= column < len(cells) or len(cells) < 2:
                want = f"a word and a tag, in columns {self.word} and {self.tag}"
                raise DataError(f"{origin}: want {want}, found {len(cells)} columns")
            if not cells[column]:
                raise DataError(f"{origin}: want a word and a tag, found an empty field in column {column}")
        return cells[self.word], cells[self.tag]

    def _document(
        self, words: list[str], tags: list[str], origin: str, document: int, counter: DocumentCounter
    ) -> Document:
        counter.see()
        group = f"{Path(origin).name.rpartition(':')[0]}#{document}" if document else ""
        text, label = tagged_text(words, as_iob2(tags))
        return Document(text, origin, group, label=label)

    def stamps(self) -> list[FileStamp]:
        """Return name, size and time of each file."""
        return [file_stamp(path) for path in find_files(self.path)]


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
    answers = _answer_texts(row)
    if answers is None or not all(isinstance(one, str) for one in answers):
        raise DataError(f"{origin}: want a list of texts in 'answers', found {str(row.get('answers'))[:60]!r}")
    return Question(text, tuple(dict.fromkeys(one for one in answers if one.strip())), context, origin)


def _answer_texts(row: dict[str, Any]) -> list[Any] | None:
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


@part("squad")
class SquadSource(SourceConfig):
    """SQuAD: questions, each about a context in which its answers are given by their first characters.

    A `.json` file as published, or rows with `question`, `context` and `answers` in JSON lines. A question without
    answers has none in its context (SQuAD 2.0). Questions of one article stay on one side of a split.

    path: a file, a folder or a glob of JSON.
    encoding: how the files are encoded, such as latin-1; None: UTF-8, or as a byte-order mark says.
    """

    path: str
    encoding: Encoding | None = None

    @property
    def labelled(self) -> bool:
        """Tell that its documents have labels."""
        return True

    def documents(self, counter: DocumentCounter) -> Iterator[Document]:
        """Yield a document for each question: the question is its text, the context the second one."""
        for path in find_files(self.path, "*.json*"):
            for row, origin, group in _questions(path, self.encoding):
                counter.see()
                question, context, spans = _question(row, origin)
                yield Document(question, origin, group or context, pair=context, label=Answers(spans))

    def questions(self) -> Iterator[Question]:
        """Yield each question with the texts of its answers; contexts are not needed (closed book, WebQuestions)."""
        for path in find_files(self.path, "*.json*"):
            for row, origin, _ in _questions(path, self.encoding):
                yield question_of(row, origin)

    def stamps(self) -> list[FileStamp]:
        """Return name, size and time of each file."""
        return [file_stamp(path) for path in find_files(self.path, "*.json*")]


Row = dict[str, Any]


def _questions(path: Path, encoding: str | None) -> Iterator[tuple[Row, str, str]]:
    """Yield each question with its context, its origin and its article."""
    name = printable_path(path)
    try:
        with open_text(path, encoding) as stream:
            head = stream.peek(1 << 12)[: 1 << 12].lstrip()
            nested = head.startswith(b"{") and b'"paragraphs"' in head
            if not nested:
                for number, raw in enumerate(json_items(stream, LARGEST), 1):
                    if raw is not None and raw.strip():
                        yield _row(raw, f"{name}:{number}"), f"{name}:{number}", ""
                return
            data = stream.read(LARGEST + 1)
    except UnreadableFile as fault:
        raise DataError(f"{name}: {fault.reason.words}: not a file of questions") from None
    if len(data) > LARGEST:
        raise DataError(f"{name}: want at most {LARGEST} bytes of JSON, found more; JSON lines may be longer")
    yield from _nested(_row(data, name), name)


def _row(raw: bytes, origin: str) -> Row:
    try:
        found = parse_json(raw.decode(), origin)
    except UnicodeDecodeError:
        raise DataError(f"{origin}: want UTF-8 text, found other bytes") from None
    if not isinstance(found, dict):
        raise DataError(f"{origin}: want a JSON object, found {str(found)[:40]!r}")
    return found


def _nested(data: Row, name: str) -> Iterator[tuple[Row, str, str]]:
    try:
        for article in data["data"]:
            for paragraph in article["paragraphs"]:
                for number, question in enumerate(paragraph["qas"]):
                    origin = f"{name}:{question.get('id', number)}"
                    yield {**question, "context": paragraph["context"]}, origin, str(article.get("title", ""))
    except (KeyError, TypeError, AttributeError) as error:
        want = "data, each with paragraphs, each with a context and qas"
        raise DataError(f"{name}: want {want}; wrong or missing: {error}") from None


def _question(row: Row, origin: str) -> tuple[str, str, tuple[Span, ...]]:
    for field in ("question", "context"):
        value = row.get(field)
        if not isinstance(value, str):
            raise DataError(f"{origin}: no field {field!r}; the row has {', '.join(map(str, row))[:160]}")
        if check_text(value) is not None:
            raise DataError(f"{origin}: want text in {field!r}, found an empty field")
    return row["question"], row["context"], tuple(_spans(row, origin))


def _spans(row: Row, origin: str) -> Iterator[Span]:
    """Yield the span of each answer, once; refuse one that is not where it is said to be."""
    seen = set()
    for text, start in _answers(row, origin):
        if not isinstance(text, str) or not text or not isinstance(start, int) or isinstance(start, bool):
            raise DataError(f"{origin}: want an answer and its first character, found {str(text)[:40]!r} at {start!r}")
        if start < 0 or row["context"][start : start + len(text)] != text:
            found = row["context"][max(0, start) : max(0, start) + len(text)]
            raise DataError(f"{origin}: answer {text[:40]!r} is not at {start} of its context, where {found[:40]!r} is")
        span = start, start + len(text)
        if span not in seen:
            seen.add(span)
            yield span


def _answers(row: Row, origin: str) -> list[tuple[Any, Any]]:
    """Return texts and first characters, in any of the forms in use."""
    match row:
        case {"answers": {"text": list(texts), "answer_start": list(starts)}} if len(texts) == len(starts):
            return list(zip(texts, starts, strict=True))
        case {"answers": list(found)} if all(isinstance(one, dict) for one in found):
            return [(one.get("text"), one.get("answer_start")) for one in found]
        case {"answer": str(text), "answer_start": start}:
            return [(text, start)] if text else []
    raise DataError(
        f"{origin}: want `answers`, each with text and answer_start, found {', '.join(map(str, row))[:120]}"
    )
