"""Summaries: as `transformers` generates them for T5 and BART with their own settings, in windows, graded by ROUGE."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers as hf
from tasks.pair_runs import CONTEXT, TOKENIZER, loud_pair, tiny_pairs
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

import heddle
from heddle.cli.main import main
from heddle.core import MissingExtra, UsageError, override
from heddle.decoding.generation import GenerationJob
from heddle.decoding.runtime import Request
from heddle.lm import LM
from heddle.tasks.generation import summarizer
from heddle.tasks.generation.summarize import merged
from heddle.tasks.metrics import rouge, rouge_scorer
from heddle.tasks.scoring import with_special_tokens

WORDS = [
    "summarize:",
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat,",
    "and",
    "Zoë's",
    "dog",
    "ran",
    "off:",
    "42",
    "trees;",
    "here.",
    "isn't",
    "Oslo",
    "rain",
]
SUMMARY = {"prefix": "summarize: ", "num_beams": 3, "length_penalty": 2.0, "max_length": 14, "min_length": 4}


def texts(count: int) -> list[str]:
    draw = random.Random(0)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 14))) for _ in range(count)]


def saved(folder: Path, family: str, forced_end: int | None = None, **more: Any) -> tuple[Any, Any, LM]:
    """Save a model of theirs with random weights and its tokenizer; return both, and what Heddle loads.

    `more` are settings for summaries; `forced_end` is BART's end that is forced on texts of most tokens.
    """
    summary = SUMMARY | more
    if family == "T5":
        made = tokenizers.Tokenizer(models.Unigram())
        made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        names = ["<pad>", "</s>", "<unk>"]
        trainer: Any = trainers.UnigramTrainer(vocab_size=90, special_tokens=names, unk_token="<unk>")
    else:
        made = tokenizers.Tokenizer(models.BPE())
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        names = ["<s>", "<pad>", "</s>", "<unk>"]
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=names, initial_alphabet=alphabet)
    made.train_from_iterator(texts(300), trainer)
    ids = [(name, made.token_to_id(name)) for name in names]
    frame = "$A </s>" if family == "T5" else "<s> $A </s>"
    made.post_processor = processors.TemplateProcessing(frame, None, ids)
    special_names = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    special_names |= {} if family == "T5" else {"bos_token": "<s>", "cls_token": "<s>", "sep_token": "</s>"}
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=made, **special_names)
    own = {"vocab_size": len(tokenizer), "task_specific_params": {"summarization": summary}}
    torch.manual_seed(0)
    if family == "T5":
        sizes = {"d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_heads": 4, "n_positions": 200}
        model: Any = hf.T5ForConditionalGeneration(hf.T5Config(**sizes, **own, decoder_start_token_id=0))
    else:
        sides = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in
                 (("layers", 2), ("attention_heads", 4), ("ffn_dim", 40))}  # fmt: skip
        special = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
        special |= {"forced_eos_token_id": forced_end}
        config = hf.BartConfig(
            d_model=32, max_position_embeddings=200, forced_bos_token_id=0, **sides, **special, **own
        )
        model = hf.BartForConditionalGeneration(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.3 * torch.randn_like(weight)
    model.eval().save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(written | {"task_specific_params": {"summarization": summary}}))
    tokenizer.save_pretrained(folder)
    return model, tokenizer, heddle.load(folder, device="cpu")


OWN: dict[str, dict[str, Any]] = {
    "never": {"early_stopping": "never"},
    "unsaid": {"length_penalty": 0.5},
    "full": {"early_stopping": True},
    "ngrams": {"early_stopping": True, "no_repeat_ngram_size": 2},
    "greedy": {"num_beams": 1, "no_repeat_ngram_size": 3},
    "forced": {"early_stopping": False, "no_repeat_ngram_size": 2},
}


@pytest.fixture(params=[4, pytest.param(200, marks=pytest.mark.full)])
def count(request: Any) -> int:
    return int(request.param)


@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize("family", ["T5", "Bart"])
def test_summaries_are_those_of_transformers_with_the_models_own_settings(
    family: str, own: str, count: int, tmp_path: Path
) -> None:
    forced = own == "forced"
    end = (2 if family == "Bart" else 1) if forced else None
    model, tokenizer, lm = saved(tmp_path, family, end, **OWN[own], **({"forced_eos_token_id": end} if forced else {}))
    given = texts(count + 4)[4:]  # the first four have one summary by the small BART
    task = summarizer(lm.model, lm.tokenizer, lm.origin.settings, {})
    config = with_special_tokens(task.translator.config, lm.tokenizer)
    found, every, ended = lm.summarize(given), set[tuple[int, ...]](), list[bool]()
    for text, mine in zip(given, found, strict=True):
        ids = tokenizer("summarize: " + text, return_tensors="pt").input_ids
        assert task.windows(text) == ids.tolist()
        request = Request(lm.tokenizer.special_tokens.decoder_start, task.windows(text)[0])
        ((best,),) = config.strategy.complete(GenerationJob(task.translator.model, [request], config))
        every.add(tuple(best.ids))
        settings = {name: value for name, value in (SUMMARY | OWN[own]).items() if name != "prefix"}
        want = model.generate(ids, **settings, forced_eos_token_id=end, do_sample=False)[0]
        assert [*request.ids, *best.ids] == want.tolist()
        assert mine == " ".join(tokenizer.decode(want, skip_special_tokens=True).split()), text
        ended.append(want[-1].item() in (1, 2) and len(want) == SUMMARY["max_length"])
    assert len(every) > 1, "summaries that are all alike prove little"
    assert not forced or any(ended), "an end that is never forced proves nothing"


def test_options_come_before_the_models_own_settings(tmp_path: Path) -> None:
    _, _, lm = saved(tmp_path, "T5")
    config = summarizer(lm.model, lm.tokenizer, lm.origin.settings, {"beams": 2, "max_tokens": 5}).translator.config
    assert (config.strategy.beams, config.max_tokens, config.min_tokens) == (2, 5, 3)  # type: ignore[attr-defined]
    greedy = summarizer(lm.model, lm.tokenizer, lm.origin.settings, {"beams": 1}).translator.config
    assert greedy.strategy.kind == "greedy"


def test_a_long_text_is_read_in_windows_and_nothing_is_lost() -> None:
    task = summarizer(loud_pair(), TOKENIZER, {}, {"beams": 1, "max_tokens": 8})
    text = "".join(chr(97 + i % 26) for i in range(3 * CONTEXT))
    windows = task.windows(text)
    assert len(windows) > 3 and all(len(ids) <= CONTEXT for ids in windows)
    joined = [TOKENIZER.decode(ids[:-1]) for ids in windows]
    at = [text.index(one) if number == 0 else text.rindex(one) for number, one in enumerate(joined)]
    covered = {place for one in joined for start in range(len(text)) if text.startswith(one, start)
               for place in range(start, start + len(one))}  # fmt: skip
    assert covered == set(range(len(text))) and at[0] == 0
    (found,) = task.run([text])
    alone = [task.translator.translate([ids])[0].text for ids in windows]
    assert found.windows == len(windows) and found.text == merged(alone)


def test_sentences_that_a_window_repeats_are_said_once() -> None:
    assert merged(["A cat. A dog!", "A dog! A cow.", ""]) == "A cat. A dog! A cow."
    assert merged(["only  one"]) == "only  one"


def test_a_prefix_of_training_is_kept_by_the_tokenizer_of_the_run(tmp_path: Path) -> None:
    from reliability.harness import trainer_for

    config = override(tiny_pairs(tmp_path, training__steps=1, rows__source_length=CONTEXT), "objective.prefix", "go: ")
    trainer = trainer_for(config, tmp_path / "run")
    batch = next(iter(trainer.loader))
    assert batch.source is not None and all(row[:3] == [*b"go:"] for row in batch.source.tolist())
    trainer.fit()
    lm = heddle.load(tmp_path / "run", device="cpu")
    assert lm.tokenizer.source("x")[:4] == [*b"go:x"] and lm.summarize("the cat", max_tokens=4) is not None
    assert trainer_for(config, tmp_path / "run").step == 1  # resumes: the prefix is there once
    assert heddle.load(tmp_path / "run").tokenizer.source("x").count(ord("g")) == 1


def test_rouge_is_that_of_the_package() -> None:
    pytest.importorskip("rouge_score")
    found = rouge(["the cats sat", "a dog"], ["a cat sat down", "the dog"])
    scorer = rouge_scorer()
    each = [scorer.score("a cat sat down", "the cats sat"), scorer.score("the dog", "a dog")]
    assert found["rouge1"] == pytest.approx(100 * sum(one["rouge1"].fmeasure for one in each) / 2)
    assert rouge(["the cat."], ["the cat."]) == {"rouge1": 100, "rouge2": 100, "rougeL": 100}


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(MissingExtra, match=r"heddle\[eval\]"):
        rouge_scorer()


def test_the_verb_over_a_table_is_graded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rouge_score")
    monkeypatch.chdir(tmp_path)
    LM(loud_pair(), TOKENIZER).save("runs/pair")
    Path("a.csv").write_text('dialogue,summary\n"a cat, a dog",cat\n' + f'"{"word " * 30}",two\n')
    assert main(["summarize", "a.csv", "--reference", "a.csv", "--json", "--max-tokens", "6"]) == 0
    *lines, last = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["line"] for one in lines] == [1, 2] and lines[0]["windows"] == 1 < lines[1]["windows"]
    assert last["graded"] == 2 and {"rouge1", "rouge2", "rougeL"} < last.keys()
    Path("b.txt").write_text("one\n\ntwo\n")
    assert main(["summarize", "b.txt", "--beams", "1", "--max-tokens", "3"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main(["summarize", "b.txt", "--whole", "--max-tokens", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["line"] == 1


def test_a_language_model_is_refused() -> None:
    model = heddle.build("first", layers=1, width=16, heads=2, vocab=TOKENIZER.vocab)
    with pytest.raises(UsageError, match="summarize: want an encoder-decoder"):
        LM(model, TOKENIZER).summarize("x")
