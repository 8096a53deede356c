"""Chat: ids as in Hugging Face, control tokens from the template only, and the mask of the assistant's ids."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text.chats import TEMPLATES
from tokenizers import AddedToken, normalizers

from heddle.checkpoints.hf import infer_special_tokens
from heddle.core import UsageError
from heddle.text.chat import Chat, find_template, load_template
from heddle.text.chat.builtin_templates import BUILTIN
from heddle.text.formats import read_tokenizer
from heddle.text.tokenizers import BpeTokenizer, ByteTokenizer, SpecialTokens, Tokenizer, load_tokenizer
from heddle.text.tokenizers.tokenizer import Pipeline

NAMES = (
    "<|im_start|>",
    "<|im_end|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|user|>",
    "<|system|>",
)
STORY = ["the cat sat on the mat: user assistant system tool\n\n[INST] [/INST] <think> </think> 12 it's\n" * 30]
HELLO = [{"role": "user", "content": "Hi!"}]
TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "the cat"},
    {"role": "assistant", "content": "sat on the mat"},
    {"role": "user", "content": "it's 12"},
    {"role": "assistant", "content": "the mat"},
]


def made(*more: AddedToken) -> Tokenizer:
    """Train a small tokenizer with the control tokens of several models."""
    pipeline = BpeTokenizer(vocab=310, special=(*NAMES, "<|assistant|>", "<|endoftext|>")).train(STORY)._pipeline
    marks = ("<start_of_turn>", "<end_of_turn>", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", "[INST]")
    pipeline.add_special_tokens([*(AddedToken(m, special=True, normalized=False) for m in marks), *more])
    pipeline.add_tokens(
        [AddedToken(m, special=False, normalized=False) for m in ("<think>", "</think>", "<tool_call>")]
    )
    return Tokenizer(Pipeline.from_str(pipeline.to_str()))


TOKENIZER = made()
CONTROLS = set(TOKENIZER.special.values())
NEVER = [*TOKENIZER.special, *(t.content for t in TOKENIZER.added.values())]


def theirs_of(tokenizer: Tokenizer, template: str) -> Any:
    transformers = pytest.importorskip("transformers")
    pipeline = Pipeline.from_str(tokenizer._pipeline.to_str())
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=pipeline, chat_template=template, bos_token="<|end|>", eos_token="<|end|>"
    )


def hugging_face(
    tokenizer: Tokenizer, template: str, messages: list[dict[str, Any]], add_generation_prompt: bool
) -> list[int]:
    theirs = theirs_of(tokenizer, template)
    return list(
        theirs.apply_chat_template(
            messages, add_generation_prompt=add_generation_prompt, tokenize=True, return_dict=False
        )
    )


benign = st.text(st.sampled_from("the cat's 12\n\té日<|>[]{}'| sat"), min_size=1, max_size=25).filter(
    lambda text: not any(name in text for name in NEVER)
)


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=8, deadline=None)
@given(texts=st.lists(benign, min_size=3, max_size=3), add_generation_prompt=st.booleans())
def test_ordinary_messages_get_the_ids_that_hugging_face_gives(
    name: str, texts: list[str], add_generation_prompt: bool
) -> None:
    messages = [
        {"role": role, "content": text} for role, text in zip(("user", "assistant", "user"), texts, strict=True)
    ]
    expected = hugging_face(TOKENIZER, TEMPLATES[name], messages, add_generation_prompt)
    assert Chat(TEMPLATES[name], TOKENIZER).ids(messages, add_generation_prompt=add_generation_prompt) == expected


def test_a_control_token_takes_the_space_beside_it_where_it_is_said_to() -> None:
    greedy = made(
        AddedToken("<|right|>", special=True, rstrip=True, normalized=False),
        AddedToken("<|left|>", special=True, lstrip=True, normalized=False),
    )
    template = "{% for m in messages %}<|right|> {{ m.content }} \n<|left|> <|right|>\n<|left|>{% endfor %}"
    messages = [{"role": "user", "content": "  the cat  "}, {"role": "user", "content": ""}]
    assert Chat(template, greedy).ids(messages) == hugging_face(greedy, template, messages, True)


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_message_never_becomes_a_control_token(name: str, data: st.DataObject) -> None:
    hostile = st.lists(st.sampled_from([*NEVER, "<|im_", "start|>", "<|", "|>", " ", "\n", "user", "a"]), max_size=6)
    turns = ("user", "assistant", "user")
    texts = ["".join(data.draw(hostile)).replace("</think>", "") for _ in turns]
    chat = Chat(TEMPLATES[name], TOKENIZER)
    found = chat.ids([{"role": role, "content": text} for role, text in zip(turns, texts, strict=True)])
    calm = chat.ids([{"role": role, "content": "x"} for role in turns])
    guarded = CONTROLS | {i for i, t in TOKENIZER.added.items() if t.content in TEMPLATES[name]}
    assert [i for i in found if i in guarded] == [i for i in calm if i in guarded]


def test_pieces_of_a_control_token_from_message_and_template_do_not_join() -> None:
    template = "{% for m in messages %}<|im_{{ m.content }}|>{{ m.role }}{% endfor %}"
    for content in ("start", "end", "start|><|im_end"):
        ids = Chat(template, TOKENIZER).ids([{"role": "user", "content": content}])
        assert CONTROLS.isdisjoint(ids)
        assert TOKENIZER.decode(ids) == f"<|im_{content}|>user"


def test_a_known_role_may_become_a_token_and_another_may_not() -> None:
    template = "{% for m in messages %}{{ '<|' + m.role + '|>' }}{% endfor %}"
    chat = Chat(template, TOKENIZER)
    assert chat.ids([{"role": "user", "content": ""}]) == [TOKENIZER.special["<|user|>"]]
    assert CONTROLS.isdisjoint(chat.ids([{"role": "endoftext", "content": ""}]))


def test_a_guarded_token_that_is_not_special_comes_from_the_template_alone() -> None:
    think = next(i for i, t in TOKENIZER.added.items() if t.content == "<think>")
    chat = Chat("<think>{{ messages[0].content }}<think>", TOKENIZER)
    ids = chat.ids([{"role": "user", "content": "a<think><think>b<<think>"}])
    assert [i for i in ids if i == think] == [think] * 2
    assert TOKENIZER.decode(ids) == "<think>a<think><think>b<<think><think>"


def test_letters_that_look_alike_do_not_become_a_token_by_normalizing() -> None:
    pipeline = Pipeline.from_str(TOKENIZER._pipeline.to_str())
    pipeline.normalizer = normalizers.NFKC()
    pipeline.add_tokens([AddedToken("<plan>", special=False, normalized=True)])
    tokenizer = Tokenizer(pipeline)
    never = CONTROLS | {i for i, t in tokenizer.added.items() if t.content == "<plan>"}
    assert never.intersection(tokenizer.encode("＜plan＞"))  # the library's own reading
    ids = Chat("{{ messages[0].content }}{# <plan> #}", tokenizer).ids(
        [{"role": "user", "content": "a＜plan＞ ＜｜im_end｜＞"}]
    )
    assert never.isdisjoint(ids)
    assert tokenizer.decode(ids) == "a<plan> <|im_end|>"


# --- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUILTIN)
def test_answers_are_separated_from_prompts(name: str) -> None:
    chat = Chat(find_template(name, TOKENIZER), TOKENIZER)
    example = chat.training_example(TURNS)
    runs = [TOKENIZER.decode([i for i, w in zip(example.ids, example.assistant_mask, strict=True) if w], special=True)]
    assert "".join(runs).count("mat") == 2
    assert "cat" not in runs[0] and "12" not in runs[0]
    assert TOKENIZER.decode(example.ids, special=True) == chat.render(TURNS, add_generation_prompt=False).plain


@pytest.mark.parametrize("name", ["chatml", "llama3", "plain"])
def test_an_answer_goes_on_where_its_prompt_ends(name: str) -> None:
    chat = Chat(find_template(name, TOKENIZER), TOKENIZER)
    example = chat.training_example(TURNS)
    prompt = chat.ids(TURNS[:-1])
    assert example.ids[: len(prompt)] == prompt
    assert all(example.assistant_mask[len(prompt) : -1])


@pytest.mark.parametrize("name", ["chatml", "llama3"])
def test_answers_are_those_that_hugging_face_masks(name: str) -> None:
    template = find_template(name, TOKENIZER)
    found = theirs_of(TOKENIZER, template).apply_chat_template(
        TURNS, return_assistant_tokens_mask=True, return_dict=True
    )
    example = Chat(template, TOKENIZER).training_example(TURNS)
    assert example.ids == found["input_ids"]
    assert example.assistant_mask == [bool(m) for m in found["assistant_masks"]]


def test_answers_are_found_where_the_template_does_not_mark_them() -> None:
    bare = TEMPLATES["chatml"]
    example = Chat(bare, TOKENIZER).training_example(TURNS)
    shown = TOKENIZER.decode([i for i, w in zip(example.ids, example.assistant_mask, strict=True) if w], special=True)
    assert shown == "sat on the mat<|im_end|>the mat<|im_end|>"


def test_a_template_that_rewrites_its_past_must_mark_answers_itself() -> None:
    template = "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(UsageError, match="rewrites earlier turns"):
        Chat(template, TOKENIZER).training_example(TURNS)


STOPS = {
    "chatml": ["<|end|>", "<|im_end|>"],
    "llama3": ["<|end|>", "<|eot_id|>"],
    "gemma": ["<|end|>", "<end_of_turn>"],
    "zephyr": ["<|end|>"],
    "llama2": ["<|end|>"],
    "deepseek": ["<|end|>", "<｜end▁of▁sentence｜>"],
}


@pytest.mark.parametrize("name", STOPS)
def test_an_answer_stops_at_the_end_of_its_turn(name: str) -> None:
    stops = Chat(TEMPLATES[name], TOKENIZER).stops
    assert [TOKENIZER.token(i) for i in stops.ids] == STOPS[name]
    assert stops.texts == ()


def test_without_control_tokens_an_answer_stops_at_the_next_turn() -> None:
    assert Chat(find_template("plain", TOKENIZER), TOKENIZER).stops.texts == ("\nUser:",)


# --- where templates come from ----------------------------------------------------------------------------------------


def test_a_template_lies_beside_its_tokenizer(tmp_path: Path) -> None:
    assert load_template(tmp_path) is None
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"bos_token": "<s>"}))
    assert load_template(tmp_path) is None
    config.write_text(json.dumps({"chat_template": "one"}))
    assert load_template(tmp_path) == "one"
    named = [{"name": "tools", "template": "three"}, {"name": "default", "template": "two"}]
    config.write_text(json.dumps({"chat_template": named}))
    assert load_template(tmp_path) == "two"
    (tmp_path / "chat_template.jinja").write_text("four")
    assert load_template(tmp_path) == "four"


def test_a_template_is_a_name_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "own.jinja").write_text("{{ messages[0].content }}")
    bytes_ = ByteTokenizer().train([])
    assert find_template(str(tmp_path / "own.jinja"), bytes_) == "{{ messages[0].content }}"
    with pytest.raises(
        UsageError, match=r"one of chatml, llama2, llama3, plain, got 'chatm'; did you mean 'chatml'\?$"
    ):
        find_template("chatm", bytes_)
    with pytest.raises(UsageError, match=r"has no token <\|im_start\|>, <\|im_end\|>; plain needs none$"):
        find_template("chatml", bytes_)


BAD: list[Any] = [
    [],
    "Hi",
    {"role": "user"},
    ["Hi"],
    [{"content": "x"}],
    [{"role": "user"}],
    [{"role": 3, "content": "x"}],
]


@pytest.mark.parametrize("messages", BAD, ids=str)
def test_what_is_no_conversation_is_refused(messages: Any) -> None:
    with pytest.raises(UsageError, match=r"^chat: ") as caught:
        Chat(find_template("plain", TOKENIZER), TOKENIZER).ids(messages)
    assert "\n" not in str(caught.value)


def test_values_that_are_no_plain_data_are_refused() -> None:
    deep: Any = "x"
    for _ in range(60):
        deep = [deep]
    for content in (object(), b"x", deep, {1, 2}):
        with pytest.raises(UsageError, match=r"^chat: want "):
            Chat("{{ messages }}", TOKENIZER).ids([{"role": "user", "content": content}])


def test_settings_of_the_template_are_trusted() -> None:
    chat = Chat("{{ start }}{{ messages[0].content }}", TOKENIZER, {"start": "<|im_start|>"})
    assert chat.ids(HELLO)[0] == TOKENIZER.special["<|im_start|>"]


NAMED = (
    "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ unk_token }}|{{ cls_token }}|{{ sep_token }}|{{ mask_token }}"
)


@pytest.mark.parametrize(
    "named",
    [
        {"eos_token": "<|end|>"},
        {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
        {"bos_token": "<|user|>", "eos_token": "<|end|>", "unk_token": "<|endoftext|>", "mask_token": "<|eot_id|>"},
        {"eos_token": "<|end|>", "cls_token": "<|user|>", "sep_token": "<|im_end|>"},
    ],
    ids=str,
)
def test_the_special_tokens_of_an_imported_tokenizer_are_those_that_hugging_face_passes(
    named: dict[str, str], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    pipeline = Pipeline.from_str(TOKENIZER._pipeline.to_str())
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=pipeline, chat_template=NAMED, **named)
    theirs.save_pretrained(tmp_path)
    special = infer_special_tokens(read_tokenizer(tmp_path), {"bos_token_id": 3}, {})
    imported = Tokenizer(Pipeline.from_str(TOKENIZER._pipeline.to_str()), special)
    (tmp_path / "run").mkdir()
    imported.save(tmp_path / "run" / "tokenizer.json")
    for tokenizer in (imported, load_tokenizer(tmp_path / "run" / "tokenizer.json")):
        found = Chat(NAMED, tokenizer).render(HELLO)
        assert found.plain == theirs.apply_chat_template(HELLO, tokenize=False)
        assert CONTROLS.issuperset(Chat(NAMED.replace("|", ""), tokenizer).ids(HELLO))


def test_names_of_special_tokens_do_not_change_a_fingerprint() -> None:
    special = TOKENIZER.special_tokens
    pipeline = TOKENIZER._pipeline.to_str()
    bare, named = (
        Tokenizer(Pipeline.from_str(pipeline), replace(special, named=n)) for n in (None, (("pad_token", 1),))
    )
    assert bare.fingerprint == named.fingerprint


def test_a_tokenizer_of_others_without_control_tokens_takes_a_plain_template() -> None:
    pipeline = Pipeline.from_str(json.dumps(ByteTokenizer().train([]).to_json() | {"added_tokens": []}))
    bare = Tokenizer(pipeline, SpecialTokens(end=0, begin=0))
    assert not bare.special
    chat = Chat(find_template("plain", bare), bare)
    assert bare.decode(chat.ids(HELLO)) == chat.render(HELLO).plain
    assert chat.stops.texts == ("\nUser:",)
    assert any(chat.training_example(TURNS[1:]).assistant_mask)
