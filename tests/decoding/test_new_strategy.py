"""A new decoding strategy is one class: it works with `complete`, `LM.generate`, samples, constraints and drafts."""

from collections.abc import Sequence

import pytest
import torch
from cli.runs import TOKENIZER, config, loud_model

from heddle import LM, LookupDraft
from heddle.core import ConfigError, decode, part
from heddle.decoding import generation_config
from heddle.decoding.generation import GenerationConfig, TokenStrategy, complete, generate
from heddle.decoding.runtime import CaptureMode, Request, cuda_graphs
from heddle.decoding.sampling import NEG_INF, NO_TOKEN, Logits, NextTokens, RowPosition
from heddle.decoding.speculative import speculate
from heddle.models.networks import LanguageModel
from heddle.tasks.generation import make_constraints


@part("second_best")
class SecondBest(TokenStrategy):
    """Take the token of the second highest probability, or a later rank."""

    rank: int = 2

    def choose(self, logits: Logits, positions: Sequence[RowPosition]) -> NextTokens:
        best, ids = logits.topk(self.rank)
        return ids[:, -1].where(best[:, -1] > NEG_INF, ids[:, 0]).masked_fill(best[:, 0] == NEG_INF, NO_TOKEN)


def model() -> LanguageModel:
    made = loud_model(config()).eval()
    assert isinstance(made, LanguageModel)
    return made


def by_hand(made: LanguageModel, prompt: list[int], count: int, rank: int = 2) -> list[int]:
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            ids.append(int(made.logits(torch.tensor([ids]))[0, -1].topk(rank).indices[-1]))
    return ids[len(prompt) :]


@pytest.mark.parametrize("captured", [False, True])
def test_it_decodes_by_hand_and_with_captured_steps(captured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "requested_mode", lambda *_: CaptureMode.CAPTURED if captured else None)
    made, prompts = model(), [[5, 6, 7], [8]]
    wanted = [by_hand(made, prompt, 6) for prompt in prompts]
    assert generate(made, prompts, GenerationConfig(max_tokens=6, strategy=SecondBest())) == wanted
    third = GenerationConfig(max_tokens=6, strategy=SecondBest(rank=3))
    assert generate(made, prompts, third) == [by_hand(made, prompt, 6, 3) for prompt in prompts]


def test_the_library_takes_it_by_object_and_by_kind() -> None:
    lm = LM(model(), TOKENIZER)
    prompt = TOKENIZER.encode_prompt("the")
    wanted = TOKENIZER.decode(by_hand(lm.model, prompt, 5))
    assert lm.generate("the", max_tokens=5, strategy=SecondBest()) == wanted
    assert lm.generate("the", max_tokens=5, strategy="second_best") == wanted
    assert "".join(lm.stream("the", max_tokens=5, strategy=SecondBest())) == wanted
    assert lm.generate("the", max_tokens=5) != wanted


def test_drafts_constraints_and_files_know_it() -> None:
    made, settings = model(), GenerationConfig(max_tokens=8, strategy=SecondBest())
    request = Request([5, 6, 5, 6, 5])
    steps = [step.id for step in speculate(made, [request], settings, LookupDraft())]
    assert steps == complete(made, [request], settings)[0].ids
    lm = LM(made, TOKENIZER)
    text = lm.generate("the", max_tokens=5, strategy=SecondBest(), rules=make_constraints(regex="[ab]{5}"))
    assert set(text) <= {"a", "b"}
    assert decode(GenerationConfig, {"strategy": {"kind": "second_best", "rank": 3}}).strategy == SecondBest(rank=3)


def test_what_contradicts_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="temperature: cannot be combined with strategy"):
        generation_config({"strategy": SecondBest(), "temperature": 1.0})
    with pytest.raises(ConfigError, match="samples: second_best decoding gives one text"):
        generation_config({"strategy": "second_best", "samples": 2})
    with pytest.raises(ConfigError, match=r"strategy\.kind: want one of "):
        generation_config({"strategy": "third_best"})
