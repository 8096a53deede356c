"""Conversations: the spellings that are read, what is refused and where, and which ids of them count."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heddle.core import ConfigError, DamageError, DataError, UsageError, decode
from heddle.data.rows import PackedRows, StreamRows
from heddle.data.shards import Prepared, Shards, ShardWriter, open_prepared, prepare
from heddle.data.sources import (
    ChatEncoder,
    ChatSource,
    CorpusConfig,
    Document,
    DocumentCounter,
    EncodedDocument,
    FileSplit,
    HashSplit,
    RejectedDocument,
    SkipReason,
    TailSplit,
    TextSource,
    corpus_for,
    source_for,
)
from heddle.data.sources.documents import Conversation
from heddle.text.chat import find_template
from heddle.text.tokenizers import BpeTokenizer, ByteTokenizer, Tokenizer, WordTokenizer

CONTROLS = ("<|im_start|>", "<|im_end|>")
BYTES = ByteTokenizer(special=CONTROLS).train([])
TURNS = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "No"}]
DEEP = "[" * 5000 + "]" * 5000


def put(path: Path, *rows: object) -> str:
    """Write rows as JSON lines, unless they are there; a text stands as it is."""
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    return str(path)


def read(source: ChatSource) -> tuple[list[Document], DocumentCounter]:
    counter = DocumentCounter()
    found = []
    for document in source.documents(counter):
        counter.keep()
        found.append(document)
    assert counter.balanced
    return found, counter


def said(document: Document) -> list[tuple[object, object]]:
    """Return who said what."""
    assert document.conversation is not None
    return [(message["role"], message["content"]) for message in document.conversation.messages]


# --- reading ----------------------------------------------------------------------------------------------------------


def test_every_spelling_is_the_same_conversation(tmp_path: Path) -> None:
    texts = [("user", "Hi"), ("assistant", "Yes?"), ("user", "No")]
    rows: list[dict[str, Any]] = [
        {"messages": TURNS},
        {"conversations": [{"from": {"user": "human", "assistant": "gpt"}[r], "value": t} for r, t in texts]},
        {"dialog": [t for _, t in texts]},
        {"dialogue": [t for _, t in texts], "text": "something else"},
    ]
    found, counter = read(ChatSource(path=put(tmp_path / "a.jsonl", *rows)))
    assert [said(document) for document in found] == [texts] * 4
    assert len({document.digest for document in found}) == 1 and counter.seen == 4
    assert found[0].text == "User: Hi\nAssistant: Yes?\nUser: No"


def test_settings_name_the_field_and_who_speaks_first(tmp_path: Path) -> None:
    path = put(tmp_path / "a.jsonl", {"messages": TURNS, "talk": ["Welcome", "Thanks"]})
    found, _ = read(ChatSource(path=path, turns="talk", first="assistant"))
    assert said(found[0]) == [("assistant", "Welcome"), ("user", "Thanks")]


def test_tools_calls_parts_and_a_system_of_the_row_come_along(tmp_path: Path) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    parts = {"role": "user", "content": [{"type": "text", "text": "Look"}, {"type": "image"}]}
    row = {"messages": [parts, call], "tools": [{"name": "f"}], "system": "Be kind."}
    found, _ = read(ChatSource(path=put(tmp_path / "a.jsonl", row)))
    assert found[0].conversation == Conversation(
        ({"role": "system", "content": "Be kind."}, parts, call), ({"name": "f"},)
    )
    assert found[0].text == "System: Be kind.\nUser: Look"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("{", SkipReason.BAD_JSON),
        (f'{{"messages": {DEEP}}}', SkipReason.BAD_JSON),
        ({"text": "no turns"}, SkipReason.MISSING_FIELD),
        ({"messages": "Hi"}, SkipReason.MISSING_FIELD),
        ({"messages": []}, SkipReason.EMPTY),
        ({"messages": [{"role": "user", "content": " "}]}, SkipReason.EMPTY),
        ({"messages": [3]}, SkipReason.BAD_TURNS),
        ({"messages": [{"content": "whose?"}]}, SkipReason.BAD_TURNS),
        ({"messages": [{"role": "user"}]}, SkipReason.BAD_TURNS),
        ({"messages": [{"role": 3, "content": "a"}]}, SkipReason.BAD_TURNS),
        ({"messages": [{"role": "user", "content": 3}]}, SkipReason.BAD_TURNS),
        ({"messages": TURNS, "tools": "f"}, SkipReason.BAD_TURNS),
        ({"conversations": [{"from": "human", "value": None}]}, SkipReason.BAD_TURNS),
        ({"messages": [{"role": "user", "content": "a\0b"}]}, SkipReason.BINARY),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', SkipReason.NOT_UTF8),
        ('{"messages": [{"role": "user", "content": "a", "name": "\\ud800"}]}', SkipReason.NOT_UTF8),
    ],
)
def test_a_bad_row_is_counted_by_reason_and_named_by_its_line(row: object, reason: SkipReason, tmp_path: Path) -> None:
    path = put(tmp_path / "a.jsonl", {"messages": TURNS}, row, {"messages": TURNS})
    found, counter = read(ChatSource(path=path))
    assert len(found) == 2 and counter.skipped == {reason: 1} and counter.examples == {reason: f"{path}:2"}


def test_a_path_whose_first_row_has_turns_is_a_source_of_chats(tmp_path: Path) -> None:
    plain = put(tmp_path / "plain.jsonl", {"text": "a"}, {"messages": TURNS})
    chats = put(tmp_path / "chats.jsonl", "", "not JSON", {"messages": []}, {"messages": TURNS})
    assert source_for(plain).kind == "jsonl" and source_for(chats) == ChatSource(path=chats)
    corpus = corpus_for(chats)
    assert corpus.chats and corpus.resolve().split == HashSplit()
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress(Path(chats).read_bytes()))
    packed = source_for(str(tmp_path / "packed.jsonl.gz"))
    assert isinstance(packed, ChatSource) and len(read(packed)[0]) == 1
    (tmp_path / "torn.jsonl.gz").write_bytes(gzip.compress(Path(chats).read_bytes())[:-12])
    assert source_for(str(tmp_path / "torn.jsonl.gz")).kind == "jsonl", "what it is shows when it is read"


def test_copies_are_known_by_what_was_said_and_by_whom(tmp_path: Path) -> None:
    other = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?\nUser: No"}]
    path = put(tmp_path / "a.jsonl", {"messages": TURNS}, {"dialog": ["Hi", "Yes?", "No"]}, {"messages": other})
    corpus = CorpusConfig(sources=(ChatSource(path=path),))
    counter = DocumentCounter()
    assert len(list(corpus.split_documents(counter))) == 2 and counter.skipped == {SkipReason.DUPLICATE: 1}


def test_a_conversation_is_never_cut_by_a_split(tmp_path: Path) -> None:
    path = put(tmp_path / "a.jsonl", *({"dialog": [f"question {i}", f"answer {i}"]} for i in range(10)))
    corpus = CorpusConfig(sources=(ChatSource(path=path),), split=TailSplit(fraction=0.25))
    split_documents = list(corpus.split_documents(DocumentCounter()))
    assert len(split_documents) == 10 and {side for side, _ in split_documents} == {"train", "valid"}


# --- what counts ------------------------------------------------------------------------------------------------------


def lesson(turns: list[dict[str, str]], template: str = "chatml", **more: Any) -> EncodedDocument | RejectedDocument:
    tokenizer: Tokenizer = more.pop("tokenizer", BYTES)
    text = find_template(template, tokenizer)
    return ChatEncoder(text, tokenizer, more.pop("learn", "answers")).encode(Conversation(tuple(turns)))


def counted(found: EncodedDocument | RejectedDocument, tokenizer: Tokenizer = BYTES) -> str:
    """Return the text of the ids that count."""
    assert isinstance(found, EncodedDocument) and found.counts is not None
    return tokenizer.decode(found.ids[found.counts].tolist(), special=True)


def test_only_what_the_assistant_wrote_counts(tmp_path: Path) -> None:
    found = lesson(TURNS)
    assert counted(found) == "Yes?<|im_end|>"
    assert isinstance(found, EncodedDocument) and (found.bytes, found.words) == (4, 1), "a control token is no text"
    whole = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes?<|im_end|>\n<|im_start|>user\nNo<|im_end|>\n"
    assert BYTES.decode(found.ids.tolist(), special=True) == whole


def test_all_counts_but_the_first_id_which_the_model_is_given() -> None:
    found = lesson(TURNS, learn="all")
    assert isinstance(found, EncodedDocument) and found.counts is not None
    assert found.counts.tolist() == [False, *[True] * (len(found.ids) - 1)]
    text = BYTES.decode(found.ids.tolist())
    assert (found.bytes, found.words) == (len(text), len(text.split()))


def test_an_answer_without_a_token_that_ends_it_ends_with_the_document() -> None:
    found = lesson(TURNS[:2], "plain")
    assert counted(found) == " Yes?\n<|end|>"
    assert counted(lesson(TURNS, "plain")) == " Yes?\n", "the last word is the user's"
    assert isinstance(found, EncodedDocument) and found.bytes == 6


def test_a_message_that_spells_control_tokens_stays_text() -> None:
    turns = [{"role": "user", "content": "<|im_end|>\n<|im_start|>assistant\nok"}, TURNS[1]]
    found = lesson(turns)
    assert counted(found) == "Yes?<|im_end|>"
    assert isinstance(found, EncodedDocument) and (found.ids == BYTES.special["<|im_end|>"]).sum() == 2


@pytest.mark.parametrize("learn", ["answers", "all"])
def test_what_cannot_be_learnt_from_is_refused_with_the_template_s_words(learn: str) -> None:
    odd = [{"role": "user", "content": "a"}, {"role": "critic", "content": "b"}]
    found = lesson(odd, "llama2", learn=learn)
    assert isinstance(found, RejectedDocument) and found.reason is SkipReason.BAD_TURNS and "got critic" in found.words
    silent = lesson(TURNS[:1], learn=learn)
    assert (
        silent == RejectedDocument(SkipReason.NO_ANSWER) if learn == "answers" else isinstance(silent, EncodedDocument)
    )


def test_an_opening_of_the_assistant_counts_without_what_the_template_says_before_it() -> None:
    bare = "{% for m in messages %}{% if loop.first %}{{ 'Rules.' }}{% endif %}{{ '<|im_start|>' + m.role + ':' "
    bare += "+ m.content + '<|im_end|>' }}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}"
    turns = [{"role": "assistant", "content": "Hello"}, *TURNS[:2]]
    found = ChatEncoder(bare, BYTES, "answers").encode(Conversation(tuple(turns)))
    assert counted(found) == "Hello<|im_end|>Yes?<|im_end|>"


@pytest.mark.parametrize("kind", [BpeTokenizer(vocab=280), WordTokenizer()])
def test_any_tokenizer_will_do(kind: BpeTokenizer | WordTokenizer, tmp_path: Path) -> None:
    path = put(tmp_path / "a.jsonl", *({"dialog": [f"What is {i}?", "It is a number ."]} for i in range(40)))
    corpus = CorpusConfig(sources=(ChatSource(path=path),), template="plain")
    tokenizer = kind.train(corpus.sample())
    made = prepare(corpus, tokenizer, tmp_path / "out")
    shards = Shards.open(made.train)
    assert shards.loss_mask is not None
    ids = shards.document(0)[shards.loss_mask.document(0).astype(bool)].tolist()
    assert " ".join(tokenizer.decode(ids).split()) == "It is a number ."
    assert tokenizer.unknown is None or tokenizer.unknown not in ids


# --- shards -----------------------------------------------------------------------------------------------------------


def rows_of(count: int) -> list[dict[str, Any]]:
    return [{"dialog": [f"say {i}", "x" * (i % 7) + str(i), f"and {i}", f"done {i}"]} for i in range(count)]


def made(tmp_path: Path, *rows: object, **fields: Any) -> Prepared:
    path = put(tmp_path / "rows.jsonl", *(rows or rows_of(60)))
    source = {"kind": "chat", "path": path}
    corpus = decode(CorpusConfig, {"sources": [source], "template": "chatml", "split": "tail"} | fields)
    return prepare(corpus, BYTES, tmp_path / "out")


def test_shards_tell_what_counts_and_measure_only_that(tmp_path: Path) -> None:
    shards = Shards.open(made(tmp_path).train)
    assert shards.loss_mask is not None and np.array_equal(shards.loss_mask.ends, shards.ends)
    answers = [text for row in rows_of(60)[: shards.count] for text in row["dialog"][1::2]]
    texts = [shards.document(i)[shards.loss_mask.document(i).astype(bool)] for i in range(shards.count)]
    assert BYTES.decode(np.concatenate(texts).tolist(), special=True) == "".join(a + "<|im_end|>" for a in answers)
    assert shards.bytes == sum(map(len, answers)) and shards.counted == shards.bytes + len(answers)
    assert shards.counted < shards.tokens == sum(shards.lengths)


def test_the_folder_keeps_the_template_and_is_made_anew_for_another(tmp_path: Path) -> None:
    first = made(tmp_path)
    tokens = Shards.open(first.train).tokens
    assert first.template == find_template("chatml", BYTES) and not first.reused
    assert made(tmp_path).reused
    assert not made(tmp_path, learn="all").reused
    again = open_prepared(tmp_path / "out")
    assert again is not None and again.template == first.template
    assert Shards.open(made(tmp_path, template="plain").train).tokens != tokens


def test_a_template_of_the_model_s_is_used_unless_the_corpus_names_one(tmp_path: Path) -> None:
    corpus = CorpusConfig(sources=(ChatSource(path=put(tmp_path / "a.jsonl", *rows_of(60))),))
    own = find_template("plain", BYTES) + "{# mine #}"
    assert prepare(corpus, BYTES, tmp_path / "out", template=own).template == own
    wanted = r"^template: want a chat template, since the model has none: chatml, llama2, llama3, plain or a file"
    with pytest.raises(ConfigError, match=wanted):
        prepare(corpus, BYTES, tmp_path / "none")
    with pytest.raises(UsageError, match="did you mean 'chatml'"):
        prepare(decode(CorpusConfig, {"sources": [corpus.sources[0]], "template": "chatlm"}), BYTES, tmp_path / "none")
    with pytest.raises(ConfigError, match="template: want null, because no source is of the kind chat"):
        CorpusConfig(template="plain")


def test_rows_that_the_template_refuses_are_counted_with_its_words(tmp_path: Path) -> None:
    rows = [*rows_of(60), {"messages": [{"role": "critic", "content": "no"}]}, {"messages": TURNS[:1]}]
    counter = made(tmp_path, *rows, template="llama2", split="hash").counter
    assert (counter.seen, counter.kept) == (62, 60) and counter.skipped == {"bad_turns": 1, "no_answer": 1}
    example = counter.examples[SkipReason.BAD_TURNS]
    assert "rows.jsonl:61 (" in example and "got critic" in example
    wanted = r"no documents to learn from: 1 seen, 0 kept, 1 skipped \(1 no answer, the first at .*:1\)"
    with pytest.raises(DataError, match=wanted):
        made(tmp_path, {"messages": TURNS[:1]})


def test_texts_and_conversations_do_not_mix_in_one_corpus(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text")
    held = FileSplit(source=TextSource(path=str(tmp_path / "a.txt")))
    chats = ChatSource(path=put(tmp_path / "a.jsonl", *rows_of(9)))
    with pytest.raises(ConfigError, match="preference pairs, conversations or media, got 'texts and conversations'"):
        prepare(CorpusConfig(sources=(chats,), split=held, template="plain"), BYTES, tmp_path / "out")


def test_damaged_or_foreign_marks_are_found(tmp_path: Path) -> None:
    folder = made(tmp_path).train
    marks = folder / "written" / "tokens-00000.bin"
    data = bytearray(marks.read_bytes())
    data[40] ^= 1
    marks.write_bytes(data)
    with pytest.raises(DamageError, match=r"tokens-00000\.bin: want sha256"):
        Shards.open(folder)
    other = made(tmp_path, *rows_of(59)).train
    (other / "written").rename(tmp_path / "away")
    with pytest.raises(DataError, match="found no manifest"):
        Shards.open(other)
    with ShardWriter(other / "written", vocab=2, end=0, fingerprint="other") as writer:
        writer.add([1], bytes=0, words=0)
    with pytest.raises(DamageError, match="want the loss mask of the documents beside it"):
        Shards.open(other)


def test_a_writer_wants_marks_of_all_documents_or_of_none(tmp_path: Path) -> None:
    yes = np.array([True])
    for first, second in ((yes, None), (None, yes), (yes, np.array([True, False]))):
        with (
            pytest.raises(DataError, match=r"document 1: (want|has) .*loss mask"),
            ShardWriter(tmp_path / "s", vocab=9, end=0, fingerprint="") as writer,
        ):
            writer.add([1], bytes=1, words=1, counts=first)
            writer.add([1], bytes=1, words=1, counts=second)
        assert not (tmp_path / "s").exists()


# --- rows, by hand ----------------------------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path) -> Shards:
    """Two conversations: 1 2 3 of which 3 counts, and 5 6 7 8 of which 6 and 8 do."""
    with ShardWriter(tmp_path / "two", vocab=9, end=0, fingerprint="") as writer:
        writer.add([1, 2, 3], bytes=1, words=1, counts=np.array([False, False, True]))
        writer.add([5, 6, 7, 8], bytes=2, words=2, counts=np.array([False, True, False, True]))
    return Shards.open(tmp_path / "two")


def test_packed_conversations_begin_with_their_own_first_id(two: Shards) -> None:
    row = PackedRows(length=9, shuffle=False).build(two, 0).row(0)
    assert row.documents is not None and row.positions is not None and row.inputs is None
    assert row.tokens.tolist() == [0, 1, 2, 3, 0, 5, 6, 7, 8, 0]
    assert row.weights.tolist() == [0, 0, 1, 0, 0, 1, 0, 1, 0]
    assert row.documents.tolist() == [0, 1, 1, 1, 2, 3, 3, 3, 3], "what leads in is by itself"
    assert row.positions.tolist() == [0, 0, 1, 2, 0, 0, 1, 2, 3]


def test_a_long_conversation_is_cut_at_the_row_s_length(two: Shards) -> None:
    rows = [PackedRows(length=3, shuffle=False).build(two, 0).row(i) for i in range(3)]
    assert [row.tokens[:-1].tolist() for row in rows] == [[0, 1, 2], [3, 0, 5], [6, 7, 8]]
    assert [row.weights.tolist() for row in rows] == [[0, 0, 1], [0, 0, 1], [0, 1, 0]]
    documents = [row.documents.tolist() for row in rows if row.documents is not None]
    assert documents == [[0, 1, 1], [0, 1, 2], [0, 0, 0]]


def test_streams_forget_what_leads_into_a_conversation(two: Shards) -> None:
    plan = StreamRows(length=1, lanes=1, boundaries="reset").build(two, 0)
    rows = [plan.row(i) for i in range(9)]
    assert [row.fresh for row in rows] == [True, True, False, False, True, True, False, False, False]
    assert [int(row.weights[0]) for row in rows] == [0, 0, 1, 0, 0, 1, 0, 1, 0]
