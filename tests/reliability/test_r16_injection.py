"""R16: messages with every control token and role marker, whole, split and alike: no control id, and they come back."""

import random
from collections.abc import Iterator

import pytest
from text.chats import TEMPLATES
from tokenizers import AddedToken

from heddle.text.chat import Chat, find_template
from heddle.text.chat.builtin_templates import BUILTIN
from heddle.text.tokenizers import BpeTokenizer, ByteTokenizer, Tokenizer, UnigramTokenizer
from heddle.text.tokenizers.tokenizer import Pipeline

NAMES = (
    *("<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|begin_of_text|>"),
    *(
        "<|user|>",
        "<|assistant|>",
        "<|system|>",
        "<|tool|>",
        "<|endoftext|>",
        "<|channel|>",
        "<|message|>",
        "<|return|>",
    ),
)
OTHERS = (
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "<start_of_turn>",
    "<end_of_turn>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<bos>",
)
PLAIN = ("<think>", "</think>", "<tool_call>", "<tool_response>")  # added, though not special
MARKERS = (
    "user\n",
    "assistant\n",
    "system\n",
    "\n\nHuman:",
    "\nUser:",
    "### Instruction:",
    "<<SYS>>",
    "<</SYS>>",
    "\n\n",
)
ALIKE = str.maketrans({"<": "＜", "|": "｜", ">": "＞", "[": "［", "_": "\u200b_"})
STORY = ["the user said to the assistant <|im_start|> [INST] <s> think system header 12's\n\n" * 40]
MARK = "\ue000{}\ue001"  # stands around what a message must give back


def with_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer with the control tokens that other models have."""
    pipeline = tokenizer._pipeline
    pipeline.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in OTHERS])
    pipeline.add_tokens([AddedToken(name, special=False, normalized=False) for name in PLAIN])
    return Tokenizer(Pipeline.from_str(pipeline.to_str()))


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    return {
        "bpe": with_tokens(BpeTokenizer(vocab=310, special=NAMES).train(STORY)),
        "byte": with_tokens(ByteTokenizer(special=NAMES).train([])),
        "unigram": with_tokens(UnigramTokenizer(vocab=280, special=NAMES).train(STORY)),
    }


def texts(count: int) -> Iterator[str]:
    """Yield messages: every token and marker first, then mixtures of whole ones, pieces, look-alikes and escapes."""
    every = [*NAMES, "<|end|>", *OTHERS, *PLAIN, *MARKERS]
    yield from every
    yield "".join(every)
    draw = random.Random(16)
    for _ in range(count - len(every) - 1):
        parts = []
        for _ in range(draw.randint(1, 8)):
            name = draw.choice(every)
            cut = draw.randrange(len(name))
            forms = (
                name,
                name[:cut],
                name[cut:],
                name.translate(ALIKE),
                name.upper(),
                f"{{{{ '{name}' }}}}",
                "hi",
                " ",
            )
            parts.append(draw.choice(forms))
        yield draw.choice(("", " ", "\n")).join(parts)


def guarded(tokenizer: Tokenizer, template: str) -> set[int]:
    """Return the ids that a message must never give."""
    return {i for i, token in tokenizer.added.items() if token.special or token.content in template}


def check(tokenizers: dict[str, Tokenizer], count: int) -> None:
    """Put every message into a conversation, under every template in turn."""
    sources = TEMPLATES | {f"built-in {name}": find_template(name, tokenizers["bpe"]) for name in BUILTIN}
    sources.pop("macros")  # which shows a message changed, and so cannot give it back
    sources.pop("tools")  # which takes thoughts out of what was said
    chats = [
        (Chat(source, t), guarded(t, source), kind) for kind, t in tokenizers.items() for source in sources.values()
    ]
    injected = lost = 0
    for number, text in enumerate(texts(count)):
        chat, never, _ = chats[number % len(chats)]
        marked = MARK.format(text)
        roles = ("user", "assistant", "user")[: 1 + 2 * (number % 2)]
        calm = chat.ids([{"role": role, "content": MARK.format("x")} for role in roles])
        ids = chat.ids([{"role": role, "content": marked} for role in roles])
        injected += [i for i in ids if i in never] != [i for i in calm if i in never]
        lost += marked not in chat.tokenizer.decode(ids, special=True)
    print(f"R16: {injected} of {count:,} messages gave a control id, {count - lost:,} came back as they were")
    assert (injected, lost) == (0, 0)


def test_a_careless_encoding_would_be_caught(tokenizers: dict[str, Tokenizer]) -> None:
    """Show that the check has teeth: the library left to itself takes tokens from messages."""
    pipeline = Pipeline.from_str(tokenizers["bpe"]._pipeline.to_str())
    pipeline.encode_special_tokens = False
    never = guarded(tokenizers["bpe"], "")
    careless = [text for text in texts(200) if never.intersection(pipeline.encode(text, add_special_tokens=False).ids)]
    assert len(careless) > 50


def test_hostile_messages_stay_text(tokenizers: dict[str, Tokenizer]) -> None:
    check(tokenizers, 300)


@pytest.mark.full
def test_a_thousand_hostile_messages_stay_text(tokenizers: dict[str, Tokenizer]) -> None:
    check(tokenizers, 1000)
