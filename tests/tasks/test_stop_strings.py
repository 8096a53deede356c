"""Beams end where their text does: each sequence for itself, under any guide, and what is read ends before the stop."""

import itertools

import pytest
import torch
from decoding.reference import Plain, search
from tasks.pair_runs import TOKENIZER, loud_pair

from heddle.core import replace
from heddle.decoding.generation import GenerationConfig
from heddle.decoding.runtime import FinishReason, Request
from heddle.decoding.search import BeamSearch
from heddle.lm import LM
from heddle.tasks.generation import TextGenerator, text_generator
from heddle.tasks.generation.stop_strings import StopStringConstraint
from heddle.tasks.scoring import with_special_tokens
from heddle.text.tokenizers import TextStream

CONFIG = GenerationConfig(max_tokens=8, samples=3, strategy=BeamSearch(beams=3, length_penalty=0.6))
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Letters:
    """A guide: small letters and the end alone, for models over bytes write none by themselves."""

    def allowed(self) -> torch.Tensor:
        mask = torch.zeros(TOKENIZER.vocab, dtype=torch.bool)
        mask[[TOKENIZER.end, *TOKENIZER.encode(LETTERS)]] = True
        return mask

    def advance(self, id: int) -> "Letters":
        return self

    @property
    def finished(self) -> bool:
        return False


def guided(task: TextGenerator, texts: list[str]) -> list[Request]:
    return [replace(request, constraint=Letters()) for request in task.requests(texts, CONFIG)]


def stop_in(task: TextGenerator) -> str:
    """Return a letter that beams write somewhere in the middle."""
    text = task.generate(guided(task, ["a dog"]), CONFIG)[0].text
    return next(letter for i, letter in enumerate(text) if i > 1 and letter not in text[:i])


def test_beams_that_end_at_strings_are_those_of_a_plain_search() -> None:
    model = loud_pair(4).double()
    stop = stop_in(text_generator(model, TOKENIZER))
    text = TextStream(TOKENIZER, [TOKENIZER.end], [stop])
    request = Request(
        [TOKENIZER.end], [*TOKENIZER.encode("a dog"), TOKENIZER.end], StopStringConstraint(text, Letters())
    )
    config = with_special_tokens(replace(CONFIG, max_tokens=4), TOKENIZER)
    (found,) = search(model, [request], config)
    assert [tuple(h.ids) for h in found] == Plain(model, config, request).beams()
    assert any(TOKENIZER.decode(h.ids).endswith(stop) for h in found)


def test_the_text_ends_before_the_stop_and_the_ids_with_it() -> None:
    task = text_generator(loud_pair(4), TOKENIZER)
    stop, given = stop_in(task), guided(task, ["a dog", "the cat"])
    free, found = task.generate(given, CONFIG), task.generate(given, CONFIG, stop)
    assert [a.text for a in found] != [a.text for a in free]
    assert all(set(each.text) <= set(LETTERS) - {stop} for each in found)
    halted = [a for a in found if a.completion.reason is FinishReason.STOP and a.completion.ids[-1] != TOKENIZER.end]
    assert halted and all(TOKENIZER.decode(a.completion.ids) == a.text + stop for a in halted)


def test_the_library_takes_stops_with_beams() -> None:
    lm = LM(loud_pair(3), TOKENIZER)
    free = lm.generate("a dog", beams=3, max_tokens=8)
    assert lm.generate("a dog", beams=3, max_tokens=8, stop="\u2603") == free
    one, other = lm.generate(["a dog", "cat"], beams=3, max_tokens=8, stop=list(set(free)))
    assert not set(one) & set(free) and not set(other) & set(free)


@pytest.mark.parametrize("text", ["naïve café, 日本", "abcabcab" * 9])
def test_a_fork_goes_on_by_itself(text: str) -> None:
    ids = TOKENIZER.encode(text)
    stream, forks = TextStream(TOKENIZER, (), ["zz", "bb"]), []
    for id in ids:
        forks.append(stream.fork())
        forks[-1].push(ids[0])  # another way to go on, which leaves no trace
        stream.push(id)
    straight = TextStream(TOKENIZER, (), ["zz", "bb"])
    assert "".join([*map(straight.push, ids), straight.flush()]) == text
    again = TextStream(TOKENIZER, (), ["zz", "bb"])
    pieces = list(itertools.chain(map(again.push, ids[:5]), map(again.fork().push, ())))
    assert "".join([*pieces, *map(again.push, ids[5:]), again.flush()]) == text
