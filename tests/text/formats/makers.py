"""Tokenizer folders of every format: small vocabularies trained on the fly, and random strings to encode."""

import gzip
import inspect
import json
import random
import textwrap
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from heddle.text.tokenizers import LLAMA3

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "vocab"
TONGUES = "Ünïcödé naïve Käse größe 日本語の文 текст αβγ ½ ﬁ 12,000 € don't — “so” (it) goes; 🙂 émigré\n" * 30


@cache
def corpus() -> str:
    """Return some text that every Python has, and some of other scripts."""
    return inspect.getsource(textwrap) + inspect.getsource(random) + TONGUES


# --- strings ----------------------------------------------------------------------------------------------------------

SNIPPETS = ["the ", "of", "ing ", "don't", "'s", "2023", "``", "''", " .", " ,", "\r\n", "   ", "(", "-", "ﬁ", "Å"]
SNIPPETS += ["e\u0301", "가", "\u1100\u1161", "Qu", "x = y_1;", " n't", "\u0600 "]
SPACES = " \t\n\r\u00a0\u3000\u2028\u200b\u200d\ufeff\x85\x00"


def strings(count: int, seed: int = 0) -> list[str]:
    """Return random strings from all planes: controls, marks, emoji, CJK, right to left, runs of spaces, long ones."""
    rng = random.Random(seed)
    letters: list[Callable[[], str]] = [
        lambda: chr(rng.randrange(0x20, 0x7F)),
        lambda: chr(rng.randrange(0, 0x20)),
        lambda: chr(rng.randrange(0x80, 0x250)),
        lambda: chr(rng.randrange(0x300, 0x370)),
        lambda: chr(rng.randrange(0x370, 0x700)),
        lambda: chr(rng.randrange(0x4E00, 0xA000)),
        lambda: chr(rng.randrange(0x1F300, 0x1FB00)),
        lambda: chr(rng.choice((rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)))),
        lambda: rng.choice(SPACES),
        lambda: rng.choice(SNIPPETS),
        lambda: " " * rng.randrange(1, 6),
    ]
    found = [""]
    for number in range(1, count):
        mine = rng.sample(letters, rng.randrange(1, len(letters) + 1))
        length = 20_000 if number % 997 == 0 else int(2 ** rng.uniform(0, 7))
        found.append("".join(rng.choice(mine)() for _ in range(length)))
    return found


# --- folders ----------------------------------------------------------------------------------------------------------


def _save(folder: Path, model: dict[str, Any], told: dict[str, Any] | None = None) -> Path:
    (folder / "config.json").write_text(json.dumps(model))
    if told is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(told))
    return folder


@cache
def _byte_level_pipeline(special: tuple[str, ...]) -> dict[str, Any]:
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    trained.train_from_iterator([corpus()], trainer)
    found: dict[str, Any] = json.loads(trained.to_str())["model"]
    return found


def _vocab_and_merges(folder: Path, special: tuple[str, ...], names: tuple[str, str]) -> None:
    model = _byte_level_pipeline(special)
    (folder / names[0]).write_text(json.dumps(model["vocab"]))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
    (folder / names[1]).write_text("\n".join(lines) + "\n")


def gpt2(folder: Path) -> Path:
    """GPT-2's two files."""
    _vocab_and_merges(folder, ("<|endoftext|>",), ("vocab.json", "merges.txt"))
    return _save(folder, {"model_type": "gpt2"})


def gpt(folder: Path) -> Path:
    """GPT's two files (2018): merges within words without case, the last piece of which is marked."""
    trained = Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token="<unk>"))
    trained.normalizer = normalizers.BertNormalizer(lowercase=True)
    trained.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    trained.train_from_iterator([corpus()], trainer)
    model = json.loads(trained.to_str())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n")
    return _save(folder, {"model_type": "openai-gpt"})


def opt(folder: Path) -> Path:
    """OPT: GPT-2's class, by flags a token before a text, and one that was added."""
    _vocab_and_merges(folder, ("<s>", "<pad>", "</s>", "<unk>"), ("vocab.json", "merges.txt"))
    told = {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, "bos_token": "</s>", "eos_token": "</s>"}
    told |= {"unk_token": "</s>", "pad_token": "<pad>", "model_max_length": int(1e30)}
    added = {"700": {"content": "<tool>", "special": False, "normalized": False, "lstrip": True}}
    return _save(folder, {"model_type": "opt"}, told | {"added_tokens_decoder": added})


def roberta(folder: Path) -> Path:
    """RoBERTa: framed, and here with a space before every text."""
    _vocab_and_merges(folder, ("<s>", "<pad>", "</s>", "<unk>", "<mask>"), ("vocab.json", "merges.txt"))
    return _save(folder, {"model_type": "roberta"}, {"add_prefix_space": True, "model_max_length": 512})


def qwen2(folder: Path) -> Path:
    """Qwen2: another pattern, and composed characters."""
    _vocab_and_merges(folder, ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), ("vocab.json", "merges.txt"))
    more = ["<|im_start|>", "<|im_end|>"]
    told = {"eos_token": "<|im_end|>", "bos_token": None, "additional_special_tokens": more}
    return _save(folder, {"model_type": "qwen2"}, told)


def neox(folder: Path) -> Path:
    """GPT-NeoX: composed characters."""
    _vocab_and_merges(folder, ("<|endoftext|>", "<|padding|>"), ("vocab.json", "merges.txt"))
    return _save(folder, {"model_type": "gpt_neox"})


def bert(folder: Path, **told: Any) -> Path:
    """BERT's list of pieces."""
    trained = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    trained.normalizer = normalizers.BertNormalizer(lowercase=told.get("do_lower_case", True))
    trained.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    first = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trained.train_from_iterator(
        [corpus()], trainers.WordPieceTrainer(vocab_size=600, special_tokens=first, show_progress=False)
    )
    vocab = trained.get_vocab()
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in sorted(vocab, key=lambda p: vocab[p])))
    return _save(folder, {"model_type": "bert"}, told)


def bert_cased(folder: Path) -> Path:
    """BERT with case, accents and cleaned spaces."""
    flags = {"do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False}
    return bert(folder, clean_up_tokenization_spaces=True, **flags)


def _sentencepiece_pipeline(folder: Path, name: str, **settings: Any) -> None:
    text = folder / "text"
    lines = [line[:500] for line in corpus().splitlines() if line.strip()]
    text.write_text("\n".join(lines))
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(folder / name), minloglevel=2, hard_vocab_limit=False, **settings
    )
    text.unlink()
    (folder / f"{name}.vocab").unlink()


T5 = {"model_type": "unigram", "vocab_size": 400, "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
LLAMA = {
    "model_type": "bpe",
    "vocab_size": 700,
    "byte_fallback": True,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "character_coverage": 0.99,
}


def t5(folder: Path) -> Path:
    """T5: unigram, sentinels after the pieces."""
    _sentencepiece_pipeline(folder, "spiece", **T5)
    return _save(folder, {"model_type": "t5"}, {"clean_up_tokenization_spaces": True})


def t5_own(folder: Path) -> Path:
    """T5 with pieces that its makers added."""
    _sentencepiece_pipeline(folder, "spiece", **T5, user_defined_symbols=["<own>", "(", "-"])
    return _save(folder, {"model_type": "t5"}, {"extra_ids": 7})


def pegasus(folder: Path) -> Path:
    """Pegasus: a hundred names before the pieces."""
    _sentencepiece_pipeline(folder, "spiece", **T5)
    return _save(folder, {"model_type": "pegasus"})


def albert(folder: Path) -> Path:
    """ALBERT: accents and case dropped, marks of its own."""
    places = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "vocab_size": 400, "model_type": "unigram"}
    own = {"control_symbols": ["[CLS]", "[SEP]", "[MASK]"], "user_defined_symbols": ["(", ")", "-", "£"]}
    _sentencepiece_pipeline(folder, "spiece", **places, **own)
    return _save(folder, {"model_type": "albert"})


def xlm_roberta(folder: Path) -> Path:
    """XLM-R: four control tokens in another order."""
    _sentencepiece_pipeline(folder, "sentencepiece.bpe", model_type="unigram", vocab_size=400)
    return _save(folder, {"model_type": "xlm-roberta"})


def llama(folder: Path) -> Path:
    """Llama: BPE over whole texts that falls back to bytes."""
    _sentencepiece_pipeline(folder, "tokenizer", **LLAMA, user_defined_symbols=["<tool>"])
    told = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": True}
    return _save(folder, {"model_type": "llama"}, told)


def llama_bare(folder: Path) -> Path:
    """Llama without the space before a text."""
    _sentencepiece_pipeline(folder, "tokenizer", **LLAMA)
    told = {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False, "pad_token": "<unk>"}
    return _save(folder, {"model_type": "llama"}, told)


def whole_llama3(folder: Path) -> Path:
    """A tokenizer.json such as Llama 3's."""
    model = _byte_level_pipeline(("<|begin_of_text|>", "<|eot_id|>"))
    pipeline = Tokenizer(models.BPE(model["vocab"], [tuple(pair) for pair in model["merges"]], ignore_merges=True))
    cut = pre_tokenizers.Split(Regex(LLAMA3), "isolated")
    pipeline.pre_tokenizer = pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(False, use_regex=False)])
    pipeline.decoder = decoders.ByteLevel()
    pipeline.add_special_tokens(["<|begin_of_text|>", "<|eot_id|>"])
    pipeline.add_tokens([AddedToken("<think>", normalized=False)])
    begin = ("<|begin_of_text|>", 0)
    template = processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[begin])
    pipeline.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), template])
    pipeline.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
    flags = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": True}
    return _save(folder, {"model_type": "llama"}, {**names, **flags})


def whole_gemma(folder: Path) -> Path:
    """A tokenizer.json such as Gemma's: spaces are marked by normalizing."""
    model = models.BPE(*_merged("gemma"), unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    pipeline = Tokenizer(model)
    pipeline.normalizer = normalizers.Replace(" ", "\u2581")
    pipeline.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    pipeline.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    pipeline.add_special_tokens(["<unk>", "<bos>", "<eos>"])
    pipeline.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
    return _save(folder, {"model_type": "gemma2"}, {"tokenizer_class": "PreTrainedTokenizerFast", **names})


def whole_prepended(folder: Path) -> Path:
    """A tokenizer.json such as Mistral's first: a mark is put before every text by normalizing."""
    pipeline = Tokenizer(models.BPE(*_merged("mistral"), unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    pipeline.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    pipeline.decoder = decoders.Sequence(steps)
    pipeline.add_special_tokens(["<unk>", "<s>", "</s>"])
    pipeline.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return _save(folder, {"model_type": "mistral"}, {"tokenizer_class": "LlamaTokenizerFast", **names})


def _merged(kind: str) -> tuple[dict[str, int], list[tuple[str, str]]]:
    first = {"gemma": ["<unk>", "<bos>", "<eos>"], "mistral": ["<unk>", "<s>", "</s>"]}[kind]
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    special = first + [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=special, show_progress=False, limit_alphabet=100)
    trained.train_from_iterator([corpus()], trainer)
    model = json.loads(trained.to_str())["model"]
    return model["vocab"], [tuple(pair) for pair in model["merges"]]


FOLDERS: dict[str, Callable[[Path], Path]] = {
    make.__name__: make
    for make in (gpt, gpt2, opt, roberta, qwen2, neox, bert, bert_cased, t5, t5_own, pegasus, albert, xlm_roberta)
}
FOLDERS |= {make.__name__: make for make in (llama, llama_bare, whole_llama3, whole_gemma, whole_prepended)}


# --- published vocabularies, where they are ---------------------------------------------------------------------------

PUBLISHED = {
    "gpt2": ("gpt2", {"encoder.json.gz": "vocab.json", "vocab.bpe.gz": "merges.txt"}),
    "bert": ("bert-base-uncased", {"vocab.txt.gz": "vocab.txt"}),
    "albert": ("albert-sentencepiece", {"spiece.model.gz": "spiece.model"}),
}


def published(folder: Path, name: str) -> Path | None:
    """Unpack a published vocabulary; None: it is not here."""
    place, files = PUBLISHED[name]
    for packed, plain in files.items():
        if not (SHARED / place / packed).is_file():
            return None
        (folder / plain).write_bytes(gzip.decompress((SHARED / place / packed).read_bytes()))
    return _save(folder, {"model_type": name})
