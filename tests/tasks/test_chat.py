"""Conversations: answers are what generation gives, stop at the end of the turn, and drop the turns that do not fit."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

import heddle.tasks.generation.chat as chat_module
from heddle.core import UsageError, replace
from heddle.decoding import generation_config
from heddle.decoding.generation import StepOutput, generate
from heddle.decoding.runtime import FinishReason, Request
from heddle.models.networks import LanguageModel
from heddle.models.presets import PresetConfig, build
from heddle.tasks.generation import Conversation, conversation
from heddle.tasks.scoring import with_special_tokens
from heddle.text.chat import Chat, find_template
from heddle.text.tokenizers import ByteTokenizer

TOKENIZER = ByteTokenizer(special=("<|im_start|>", "<|im_end|>")).train([])
CHATML, PLAIN = (Chat(find_template(name, TOKENIZER), TOKENIZER) for name in ("chatml", "plain"))
END = TOKENIZER.special["<|im_end|>"]


def model_of(context: int = 256, name: str = "first") -> LanguageModel:
    """Build a small model whose probabilities are far from uniform."""
    dials = {"layers": 1, "width": 16, "vocab": TOKENIZER.vocab, "context": context}
    made = PresetConfig(name=name, **dials | ({} if name == "lstm_lm" else {"heads": 2})).build(1)
    with torch.no_grad():
        for weight in made.parameters():
            weight += 0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    assert isinstance(made, LanguageModel)
    return made


def talk(chat: Chat = CHATML, context: int = 256, **options: Any) -> Conversation:
    return conversation(model_of(context), chat, generation_config({"max_tokens": 12, **options}))  # type: ignore[typeddict-item]


@pytest.mark.parametrize("name", ["first", "lstm_lm"])
def test_an_answer_is_what_generation_gives(name: str) -> None:
    model, config = model_of(name=name), generation_config({"max_tokens": 12})
    made = conversation(model, CHATML, config, "Be kind.")
    turns: list[dict[str, object]] = [{"role": "system", "content": "Be kind."}]
    for text in ("Hi!", "And then?", "Why?"):
        turns.append({"role": "user", "content": text})
        ids = CHATML.ids(turns)
        expected = generate(model, [ids], replace(with_special_tokens(config, TOKENIZER), stop=(TOKENIZER.end, END)))
        answer = "".join(made.say(text))
        assert answer.strip() == TOKENIZER.decode(expected[0]).strip()
        turns.append({"role": "assistant", "content": answer.rstrip()})
    assert made.turns == turns[1:]


def test_an_answer_stops_at_the_end_of_its_turn() -> None:
    made = talk(bias={END: 1000.0})
    assert list(made.say("Hi!")) == []
    assert made.reason is FinishReason.STOP
    assert made.turns == [{"role": "user", "content": "Hi!"}, {"role": "assistant", "content": ""}]


def scripted(text: str, stop: int | None = None) -> Any:
    """Return a stand-in for a model that writes a certain text."""

    def follow(
        model: Any, requests: Sequence[Request], config: Any, should_stop: Any, prefix_cache: Any
    ) -> Iterator[StepOutput]:
        for i, id in enumerate(ids := [*TOKENIZER.encode(text), *([] if stop is None else [stop])]):
            done = should_stop(0, id) or id in config.stop
            yield StepOutput(0, id, FinishReason.STOP if done else FinishReason.LENGTH if i + 1 == len(ids) else None)
            if done:
                return

    return follow


def test_without_control_tokens_an_answer_stops_before_the_next_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_module, "follow", scripted(" \n Well, é日.\nUse it\nUser: and more"))
    made = talk(PLAIN)
    pieces = list(made.say("Hi!"))
    assert "".join(pieces) == "Well, é日.\nUse it"
    assert all(pieces)
    assert made.turns[-1] == {"role": "assistant", "content": "Well, é日.\nUse it"}


def test_what_follows_a_stop_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_module, "follow", scripted("Yes.", END))
    assert "".join(talk().say("Hi!")) == "Yes."


def test_an_answer_that_is_broken_off_counts_as_far_as_it_went(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_module, "follow", scripted("Once upon a time"))
    made = talk()
    answer = made.say("Tell!")
    assert [next(answer) for _ in range(4)] == list("Once")
    answer.close()  # type: ignore[attr-defined]
    assert made.turns[-1] == {"role": "assistant", "content": "Once"}
    assert made.reason is None


def test_the_oldest_turns_are_forgotten_and_the_system_stays() -> None:
    made = conversation(model_of(200), CHATML, generation_config({"max_tokens": 4}), "Be kind.")
    for i in range(6):
        list(made.say(f"Question number {i}"))
    assert made.forgotten > 0
    assert made.forgotten % 2 == 0
    assert made.turns[-2]["content"] == "Question number 5"
    assert len(made.turns) + made.forgotten == 12
    ids = CHATML.ids([{"role": "system", "content": "Be kind."}, *made.turns[:-1]])
    assert len(ids) <= 200
    made.reset()
    assert (made.turns, made.forgotten) == ([], 0)


def test_a_turn_beyond_the_context_is_refused_and_the_conversation_goes_on() -> None:
    made = talk(context=100)
    list(made.say("short"))
    kept = list(made.turns)
    with pytest.raises(UsageError, match=r"^prompt: \d+ tokens are more than the model's context of 100$"):
        list(made.say("long " * 40))
    assert made.turns == kept
    list(made.say("a" * 70))  # fits, though with little space for an answer
    assert made.turns[-2]["content"] == "a" * 70 and made.turns[-1]["role"] == "assistant"


def test_history_is_read_once() -> None:
    made = talk(context=400)
    for text in ("Tell me all about it, please.", "And then?"):
        list(made.say(text))
    assert made._prefixes.reused_tokens > 30


def test_what_cannot_chat_is_refused() -> None:
    with pytest.raises(UsageError, match="beams and samples are not supported"):
        talk(beams=3)
    pair = build("transformer_base", layers=1, width=16, heads=2, hidden=16, vocab=TOKENIZER.vocab, context=16)
    with pytest.raises(UsageError, match="want a language model"):
        conversation(pair, CHATML, generation_config({}))
