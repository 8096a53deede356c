"""Classes, tags, masks and answers of imported encoders are those that `transformers` gives."""

import math
import random
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers as hf
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

import heddle
from heddle.lm import LM

FAMILIES = ("Bert", "Roberta", "DistilBert", "Albert")
WORDS = ["the", "cat", "sat", "on", "a", "mat,", "and", "Zoë's", "dog", "ran", "off:", "42", "trees;", "naïve"]
WORDS += ["re-entry", "isn't", "here.", "Ünder", "Oslo", "rain"]
LABELS = {0: "joy", 1: "fear", 2: "neither"}
TAGS = {0: "O", 1: "B-X", 2: "I-X"}
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}


def texts(count: int, longest: int = 14) -> list[str]:
    draw = random.Random(0)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, longest))) for _ in range(count)]


def their_tokenizer(family: str) -> Any:
    """Return a small tokenizer of a family's kind."""
    if family in ("Roberta", "Bart"):
        made = tokenizers.Tokenizer(models.BPE())
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        trainer: Any = trainers.BpeTrainer(
            vocab_size=330, special_tokens=names, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        )
    elif family == "Albert":
        made = tokenizers.Tokenizer(models.Unigram())
        made.normalizer = normalizers.Sequence(
            [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
        )
        made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        names = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
        trainer = trainers.UnigramTrainer(vocab_size=60, special_tokens=names, unk_token="<unk>")
    else:
        made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        made.decoder = decoders.WordPiece()
        names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        trainer = trainers.WordPieceTrainer(vocab_size=90, special_tokens=names)
    made.train_from_iterator(texts(300), trainer)
    first, last = ("<s>", "</s>") if family in ("Roberta", "Bart") else ("[CLS]", "[SEP]")
    ids = [(name, made.token_to_id(name)) for name in (first, last)]
    if family in ("Roberta", "Bart"):
        made.post_processor = processors.RobertaProcessing(ids[1][::1], ids[0], add_prefix_space=False)
    else:
        pair = f"{first} $A {last} $B:1 {last}:1"
        made.post_processor = processors.TemplateProcessing(f"{first} $A {last}", pair, ids)
    mask = "<mask>" if family in ("Roberta", "Bart") else "[MASK]"
    pad = names[1 if family in ("Roberta", "Bart") else 0]
    unknown = next(name for name in names if "unk" in name.lower())
    stripped = tokenizers.AddedToken(mask, lstrip=family in ("Roberta", "Albert", "Bart"), special=True)
    more = {"cls_token": first, "sep_token": last, "pad_token": pad, "unk_token": unknown, "mask_token": stripped}
    inputs = ["input_ids", *(["token_type_ids"] if family in ("Bert", "Albert") else []), "attention_mask"]
    return hf.PreTrainedTokenizerFast(tokenizer_object=made, model_input_names=inputs, **more)


def saved(folder: Path, family: str, head: str, **settings: Any) -> tuple[Any, Any, LM]:
    """Save a model of theirs with random weights and its tokenizer; return both, and what Heddle loads."""
    tokenizer = their_tokenizer(family)
    sizes: dict[str, Any] = SMALL
    if family == "DistilBert":
        sizes = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 40}
    pad = tokenizer.pad_token_id
    if family == "Bart":
        sides = ("encoder", "decoder")
        sizes = {f"{side}_{name}": n for side in sides for name, n in (("layers", 2), ("attention_heads", 4))}
        sizes |= {"encoder_ffn_dim": 40, "decoder_ffn_dim": 48, "d_model": 32, "bos_token_id": 0, "eos_token_id": 2}
    config = getattr(hf, f"{family}Config")(
        vocab_size=len(tokenizer), max_position_embeddings=200, pad_token_id=pad, **sizes, **settings
    )
    torch.manual_seed(0)
    model = getattr(hf, f"{family}{head}")(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.3 * torch.randn_like(weight)  # so that classes differ
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer, heddle.load(folder, device="cpu")


@pytest.fixture(params=[20, pytest.param(200, marks=pytest.mark.full)])
def count(request: Any) -> int:
    return int(request.param)


@pytest.mark.parametrize("family", [*FAMILIES, "Bart"])
def test_classes_are_those_of_the_pipeline(family: str, count: int, tmp_path: Path) -> None:
    model, tokenizer, lm = saved(tmp_path, family, "ForSequenceClassification", id2label=LABELS)
    theirs = hf.pipeline("text-classification", model=model, tokenizer=tokenizer, top_k=None, device="cpu")
    given = texts(count)
    for text, found, want in zip(given, lm.classify(given), theirs(given), strict=True):
        assert found.probabilities == pytest.approx({one["label"]: one["score"] for one in want}, abs=2e-5), text
        assert found.label == max(want, key=lambda one: one["score"])["label"]
    both = [{"text": a, "text_pair": b} for a, b in zip(given, reversed(given), strict=True)]
    for found, want in zip(lm.classify(given, pair=given[::-1]), theirs(both), strict=True):
        assert found.probabilities == pytest.approx({one["label"]: one["score"] for one in want}, abs=2e-5)


def test_several_classes_and_numbers_as_their_problem_type_says(tmp_path: Path) -> None:
    given = texts(8)
    for problem, labels in (("multi_label_classification", LABELS), ("regression", {0: "score"})):
        folder = tmp_path / problem
        model, tokenizer, lm = saved(folder, "Bert", "ForSequenceClassification", id2label=labels, problem_type=problem)
        theirs = hf.pipeline("text-classification", model=model, tokenizer=tokenizer, top_k=None, device="cpu")
        for found, want in zip(lm.classify(given), theirs(given), strict=True):
            scores = {one["label"]: one["score"] for one in want}
            assert (found.probabilities or {"score": found.score}) == pytest.approx(scores, abs=2e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_tags_are_those_of_the_pipeline(family: str, count: int, tmp_path: Path) -> None:
    model, tokenizer, lm = saved(tmp_path, family, "ForTokenClassification", id2label=TAGS)
    theirs = hf.pipeline("token-classification", model=model, tokenizer=tokenizer, ignore_labels=[], device="cpu")
    given = texts(count)
    for text, found, want in zip(given, lm.tag(given), theirs(given), strict=True):
        assert len(found.tokens) == len(want)
        for mine, their in zip(found.tokens, want, strict=True):
            space = text[their["start"]] == " " and their["end"] > their["start"] + 1  # some of theirs count it
            start = their["start"] + space
            assert (mine.tag, mine.start, mine.end) == (their["entity"], start, their["end"]), text
            assert mine.probability == pytest.approx(float(their["score"]), abs=2e-5)
        assert [word.tag for word in found.words]


@pytest.mark.parametrize("family", FAMILIES)
def test_masks_are_filled_as_the_pipeline_fills_them(family: str, tmp_path: Path) -> None:
    model, tokenizer, lm = saved(tmp_path, family, "ForMaskedLM")
    theirs = hf.pipeline("fill-mask", model=model, tokenizer=tokenizer, top_k=3, device="cpu")
    for text in (f"the {tokenizer.mask_token} sat on a mat", f"dog ran {tokenizer.mask_token}."):
        found, want = lm.fill(text, top=3), theirs(text)
        assert [one.id for one in found] == [one["token"] for one in want]  # type: ignore[union-attr]
        assert [one.probability for one in found] == pytest.approx([one["score"] for one in want], abs=2e-5)  # type: ignore[union-attr]


def best_answer(model: Any, tokenizer: Any, question: str, context: str) -> tuple[str, float, float]:
    """Return the best answer by its plain definition: softmax over the context's tokens and the first."""
    inputs = tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True)
    offsets, side = inputs.pop("offset_mapping")[0].tolist(), inputs.encodings[0].sequence_ids
    with torch.no_grad():
        found = model(**inputs)
    allowed = [0, *(place for place, text in enumerate(side) if text == 1)]
    start, end = (
        {place: p for place, p in zip(allowed, logits[0, allowed].double().softmax(0).tolist(), strict=True)}
        for logits in (found.start_logits, found.end_logits)
    )
    none = start[0] * end[0]
    pairs = [(start[i] * end[j], i, j) for i in allowed[1:] for j in allowed[1:] if i <= j < i + 30]
    p, i, j = max(pairs)
    return ("", none, none) if p <= none else (context[offsets[i][0] : offsets[j][1]].strip(), p, none)


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_the_best_valid_spans(family: str, count: int, tmp_path: Path) -> None:
    model, tokenizer, lm = saved(tmp_path, family, "ForQuestionAnswering")
    questions, contexts = texts(count, 5), texts(count, 30)
    for question, context, found in zip(questions, contexts, lm.answer(questions, contexts), strict=True):
        text, probability, none = best_answer(model, tokenizer, question, context)
        assert found.text == text == context[found.start : found.end]
        assert (found.probability, found.none) == pytest.approx((probability, none), abs=2e-5)


def test_long_texts_are_read_in_windows(tmp_path: Path) -> None:
    _, _, lm = saved(tmp_path / "a", "Bert", "ForSequenceClassification", id2label=LABELS)
    one, many = lm.classify("the cat sat"), lm.classify("the cat sat " * 200)
    assert math.isclose(sum(many.probabilities.values()), 1, abs_tol=1e-5) and one.label in many.probabilities
    _, _, tagger = saved(tmp_path / "b", "Bert", "ForTokenClassification", id2label=TAGS)
    found = tagger.tag("the cat sat " * 200)
    assert len(found.words) == 600 and all(word.text == found.text[word.start : word.end] for word in found.words)
    _, _, answerer = saved(tmp_path / "c", "Bert", "ForQuestionAnswering")
    answer = answerer.answer("cat?", "the mat " * 200, must=True)
    assert answer.text == ("the mat " * 200)[answer.start : answer.end] != ""
