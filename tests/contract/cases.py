"""Cases: the small models and short runs that the contract freezes, their texts, and the config keys they set."""

import json
import random
from pathlib import Path
from typing import Any

# Config keys that may have got another name: the first of the new ones that the checkout knows is used, else the old.
# `hardware.sums` and `hardware.recompute`, whose values have other names too, stay old here, as a user may type them.
KEYS: dict[str, tuple[str, ...]] = {
    "training.micro": ("training.micro_batch",),
    "training.optimizer.rate": ("training.optimizer.learning_rate",),
    "training.optimizer.decay": ("training.optimizer.weight_decay",),
    "training.optimizer.rest.rate": ("training.optimizer.rest.learning_rate",),
    "training.horizon": ("training.window_warmup", "training.window"),
    "also": ("mix",),
    "thawed": ("unfrozen",),
    "hardware.products": ("hardware.matmul",),
}

SMALL = {"layers": 2, "width": 32, "heads": 2, "vocab": 96, "context": 24}
CELLS = {"layers": 2, "width": 24, "vocab": 96, "context": 24}
HIDDEN = CELLS | {"hidden": 32}
TWO_FOLD = {"layers": 2, "width": 32, "heads": 2, "hidden": 48, "vocab": 96, "context": 24}
NARANG = SMALL | {"layers": 4, "head_width": 16, "hidden": 48}

# label: (preset, dials, edits of the tree by dotted path)
Model = tuple[str, dict[str, Any], dict[str, Any]]
MODELS: dict[str, Model] = {
    "first": ("first", SMALL, {}),
    "speedrun": ("speedrun", SMALL, {}),
    "window": ("window_lm", {"n": 4, "width": 24, "hidden": 20, "vocab": 96, "context": 24}, {}),
    "rnn": ("rnn_lm", CELLS, {}),
    "gru": ("gru_lm", CELLS, {}),
    "lstm": ("lstm_lm", CELLS, {}),
    "awd_lstm": ("awd_lstm", HIDDEN, {}),
    "mogrifier": ("mogrifier_lm", HIDDEN, {}),
    "qrnn": ("qrnn_lm", HIDDEN, {}),
    "gpt2": ("gpt2", SMALL, {}),
    "gpt": ("gpt", SMALL, {}),
    "gpt2-alibi": ("gpt2", SMALL, {"position": {"kind": "alibi"}}),
    "gpt2-t5-bias": ("gpt2", SMALL, {"position": {"kind": "t5"}}),
    "gpt2-relative": ("gpt2", SMALL, {"position": {"kind": "relative"}}),
    "gpt3": ("gpt3-175b", SMALL, {}),
    "llama": ("llama", SMALL | {"kv_heads": 1, "hidden": 48}, {}),
    "llama-ntk": ("llama", SMALL | {"hidden": 48}, {"position.scaling": {"kind": "ntk", "factor": 2.0}}),
    "mistral": ("mistral-7b", SMALL | {"hidden": 48, "window": 6}, {}),
    "qwen3": ("qwen3-0.6b", SMALL | {"head_width": 8, "hidden": 48}, {}),
    "mixtral": ("mixtral-8x7b", SMALL | {"hidden": 48, "experts": 4}, {}),
    "switch": ("switch-base-8", SMALL | {"hidden": 48, "experts": 4}, {}),
    "bert": ("bert-base-pretraining", TWO_FOLD, {}),
    "bert-masked": ("bert-base-masked", TWO_FOLD, {}),
    "albert": ("albert-base-masked", TWO_FOLD | {"inner": 12}, {}),
    "vit": ("vit-base-16", {"layers": 2, "width": 32, "heads": 2, "side": 32, "classes": 7}, {}),
    "transformer": ("transformer_base", TWO_FOLD, {}),
    "transformer-pre-norm": ("transformer_pre_norm", TWO_FOLD, {}),
    "seq2seq": ("seq2seq_lstm", CELLS, {}),
    "seq2seq-every-step": ("seq2seq_lstm_every_step", CELLS, {}),
    "seq2seq-additive": ("seq2seq_attention", CELLS, {}),
    "t5": ("t5-small", TWO_FOLD | {"head_width": 16}, {}),
    "t5.1.1": ("t5.1.1-small", TWO_FOLD | {"head_width": 16}, {}),
    "bart": ("bart-base", TWO_FOLD, {}),
    "marian": ("marian", TWO_FOLD, {}),
    "universal": ("narang/universal-transformer", NARANG, {}),
    "evolved": ("narang/evolved-transformer", NARANG, {}),
    "funnel": ("narang/funnel-transformer", NARANG, {}),
    "synthesizer": ("narang/synthesizer-random-plus-alpha", NARANG, {}),
    "product-keys": ("narang/product-key-memory", NARANG, {}),
    "dynamic-convolution": ("narang/dynamic-convolution", NARANG, {}),
    "adaptive-softmax": ("narang/adaptive-softmax", NARANG | {"vocab": 9000}, {}),
    "mixture-of-softmaxes": ("narang/mixture-of-softmaxes", NARANG, {}),
    "transparent": ("narang/transparent-attention", NARANG, {}),
    "weighted": ("narang/weighted-transformer", NARANG, {}),
    "fixup": ("narang/fixup", NARANG, {}),
}

# --- runs -------------------------------------------------------------------------------------------------------------

STEPS = 8
ALL = {
    "training.steps": STEPS,
    "training.batch": 4,
    "training.schedule.warmup": 2,
    "every.log": 1,
    "every.validate": 4,
    "every.save": 4,
    "every.sample": 1000,
    "hardware.device": "cpu",
    "hardware.dtype": "float64",  # float32 and bfloat16 are rounded otherwise on another CPU
    "hardware.workers": 0,
}
TEXT = {"data": "text.txt", "data.split.fraction": 0.1, "validation_rows": 4}
TINY = {"model.layers": 2, "model.width": 32, "model.heads": 2}
BPE = TEXT | TINY | {"tokenizer.vocab": 300, "rows.length": 32}
PAIRS = {"tokenizer.vocab": 300, "rows.length": 64, "rows.source_length": 64, "model.layers": 1, "model.width": 32}
LONG = {"training.steps": 60, "every.log": 6, "every.validate": 30, "every.save": 30}  # far enough to write words
CHAT = {"data": "chats.jsonl", "data.split.fraction": 0.2, "rows.length": 64, "validation_rows": 4}

# name: (recipe, overrides, how it is decoded); BEFORE has the runs that others start from
Run = tuple[str, dict[str, Any], tuple[str, ...]]
LANGUAGE = ("greedy", "sampled", "beams", "score")
EVERY_WAY = (
    *LANGUAGE,
    "groups",
    "contrast",
    "penalties",
    "int8",
    "cache",
    "lookup",
    "regex",
    "forbid",
    "embed",
    "odds",
)
RUNS: dict[str, Run] = {
    "muon_packed": ("first", BPE | LONG, EVERY_WAY),
    "accumulated": (
        "characters",
        TEXT | TINY | {"model.dropout": 0.1, "rows.length": 32, "training.micro": 2, "training.clip": 0.5},
        LANGUAGE,
    ),
    "lstm_characters": (
        "lstm_characters",
        TEXT | LONG | {"model.width": 32, "rows.length": 32, "objective.smoothing": 0.1},
        (*LANGUAGE, "regex", "odds"),
    ),
    "streams": (
        "lstm",
        TEXT | {"model.width": 24, "rows.length": 12, "tokenizer.least": 1, "training.optimizer.rate": 0.01},
        (*LANGUAGE, "contrast"),
    ),
    "triggered_sgd": (
        "awd_lstm_sgd",
        TEXT
        | {"model.layers": 2, "model.width": 16, "model.hidden": 20, "rows.length": 12}
        | {"every.validate": 1, "training.optimizer.rate": 3.0, "training.optimizer.momentum": 0.5}
        | {"training.average.patience": 1},
        ("greedy",),
    ),
    "averaged_alibi": (
        "gpt2",
        BPE
        | {"model.position": "{kind: alibi}", "training.micro": 4}
        | {"training.average": "{kind: moving, decay: 0.9}", "training.optimizer.decay": 0.3},
        ("greedy", "cache"),
    ),
    "growing_horizon": (
        "first",
        BPE
        | LONG
        | {"model": "llama", **TINY, "model.hidden": 48, "rows.boundaries": "stream"}
        | {"training.horizon": "{kind: growing, sizes: [4, 12], share: 0.8}", "hardware.recompute": "blocks"}
        | {"training.optimizer": "{kind: adamw}", "training.optimizer.rate": 0.01},
        (*LANGUAGE, "lookup", "int8", "int4"),
    ),
    "experts_fixed_sums": (
        "first",
        BPE
        | {"model": "mixtral-8x7b", **TINY, "model.hidden": 48, "model.experts": 4}
        | {"training.micro": 2, "hardware.sums": "fixed", "training.average": "{kind: plain, begin: 3}"},
        LANGUAGE,
    ),
    "mixed_corpora": (
        "first",
        BPE
        | {"also": "[{data: {sources: [{kind: text, path: other.txt}], split: {kind: tail}}, weight: 0.5}]"}
        | {
            "frozen": "['stack.0.*']",
            "thawed": "['stack.0.channel.*']",
            "training.schedule": "{kind: inverse_square_root}",
        },
        ("score",),
    ),
    "qrnn": (
        "lstm",
        TEXT
        | {"model": "qrnn_lm", "model.layers": 2, "model.width": 16, "model.hidden": 20, "rows.length": 12}
        | {"tokenizer": "{kind: unigram, vocab: 262}", "training.schedule": "{kind: constant}"},
        LANGUAGE,
    ),
    "masked": (
        "first",
        BPE | {"model": "bert-base-masked", **TINY, "model.hidden": 48, "objective": "{kind: masked_token}"},
        ("score", "embed"),
    ),
    "pairs": (
        "translate",
        PAIRS | LONG | {"model.heads": 2, "model.hidden": 48, "training.average_last": 2, "keep.last": 2},
        EVERY_WAY,
    ),
    "scheduled_sampling": (
        "translate_attention",
        PAIRS
        | {"objective.sampling": "{kind: linear, over: 0.5}", "training.average_last": 0}
        | {"training.micro": 2, "training.optimizer.rate": 0.01},
        ("greedy", "sampled", "beams", "score"),
    ),
    "pairs_sampling_t5": (
        "translate",
        PAIRS
        | {"model": "t5-small", "model.layers": 1, "model.width": 32, "model.heads": 2, "model.hidden": 48}
        | {"objective.sampling": "{kind: linear, draw: best}", "training.average_last": 0},
        ("greedy", "beams", "coverage", "score"),
    ),
    "resumed": ("runs/muon_packed", {"training.steps": 60 + STEPS, "every.log": 1}, ("greedy",)),
    "lora": (
        "finetune",
        CHAT | {"init": "runs/muon_packed", "adapters.rank": 2, "thawed": "['*norm*']", "data.template": "plain"},
        ("greedy", "int8"),
    ),
}
BEFORE = {"resumed": "muon_packed", "lora": "muon_packed"}
PROMPTS = ["the cat", "then a big red dog"]
SENTENCES = ["the cat sat on a mat.", "then it ran to the big house."]

WORDS = ["the", "cat", "dog", "sat", "on", "a", "mat", "and", "ran", "to", "big", "red", "house", "saw", "it", "then"]
CODED = {word: word[::-1] + "o" for word in WORDS}


def write_texts(folder: Path) -> None:
    """Write all that the runs learn from."""
    draw = random.Random(5)
    lines = [[draw.choice(WORDS) for _ in range(draw.randint(4, 9))] for _ in range(300)]
    plain = [" ".join(line) + "." for line in lines]
    coded = [" ".join(CODED[word] for word in line) + "." for line in lines]
    (folder / "text.txt").write_text("\n".join(plain) + "\n")
    (folder / "other.txt").write_text("\n".join(coded[:100]) + "\n")
    for name, source, target in (("train", plain[:250], coded[:250]), ("val", plain[250:], coded[250:])):
        (folder / f"{name}.en").write_text("\n".join(source) + "\n")
        (folder / f"{name}.de").write_text("\n".join(target) + "\n")
    turns = zip(plain[:60], coded[:60], strict=True)
    chats = [[{"role": "user", "content": asked}, {"role": "assistant", "content": said}] for asked, said in turns]
    (folder / "chats.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
