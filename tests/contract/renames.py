"""Renames: every change of a user-visible name since the contract was frozen, one declared line for each.

The frozen names are put through these tables before they are compared with today's. What is not declared here and
differs makes the contract's tests fail; so does what is declared and is not so.
"""

from typing import Any

# "TABLE.KEY": "NEW KEY", where a table is `family/kind` ("optimizer/adamw.rate": "learning_rate") or the name of a
# table without kinds ("training.micro": "micro_batch", "run.also": "mix"); a key that moved to another table:
# "hardware.sums": "training.reduction". A family that is called after the key goes with it. Recipes and defaults follow
# by themselves.
CONFIG_KEYS: dict[str, str] = {
    "run.also": "mix",
    "run.thawed": "unfrozen",
    "training.micro": "micro_batch",
    "training.horizon": "window_warmup",
    "optimizer/adamw.rate": "learning_rate",
    "optimizer/adamw.decay": "weight_decay",
    "optimizer/muon.rate": "learning_rate",
    "optimizer/muon.decay": "weight_decay",
    "optimizer/sgd.rate": "learning_rate",
    "optimizer/sgd.decay": "weight_decay",
    "hardware.products": "matmul",
    "hardware.recompute": "training.activation_checkpointing",
    "hardware.sums": "training.reduction",
    "guard.in_a_row": "max_consecutive",
    "router/token_choice.top": "top_k",
    "router/token_choice.normalised": "normalized",
    "router/sigmoid_choice.top": "top_k",
    "router/sigmoid_choice.kept": "top_groups",
    "router/sigmoid_choice.normalised": "normalized",
    "router/narang_choice.surely": "second_threshold",
    "objective/masked_token.share": "mask_rate",
    "objective/masked_token.masked": "mask_share",
    "objective/masked_token.spared": "never_masked",
    "capacity/factor.least": "min_capacity",
    "capacity/narang_factor.least": "min_capacity",
    "capacity/row_places.most": "max_capacity",
    "embedding/full.words": "word_dropout",
    "outputs/embedding.normalised": "normalized",
    "part/rnn.spread": "init_scale",
    "part/gru.spread": "init_scale",
    "part/lstm.spread": "init_scale",
    "part/mogrifier.spread": "init_scale",
    "part/product_keys.top": "top_k",
    "sampling/linear.most": "max_rate",
    "sampling/linear.over": "ramp",
    "sampling/exponential.most": "max_rate",
    "sampling/inverse_sigmoid.most": "max_rate",
    "table of max_tokens min_tokens choice.choice": "strategy",
    "table of max_tokens min_tokens choice.stretch": "max_length_ratio",
    "table of max_tokens min_tokens choice.alternatives": "logprobs",
}

# "FAMILY/KIND": "NEW KIND".
CONFIG_KINDS: dict[str, str] = {
    "horizon/whole": "none",
    "mask/whole": "full",
    "dropout/each": "element",
    "dropout/row": "variational",
    "values/own": "plain",
    "values/first": "value_residual",
    "cache/quantised": "int8",
    "capacity/row_places": "per_document",
    "choice/draw": "sampling",
    "part/attentive": "attention_rnn",
    "part/calm": "activation_regularization",
    "part/deep": "stacked",
    "part/pass": "identity",
    "position/near_far_rotary": "dual_rotary",
}

# "FAMILY": "NEW FAMILY", where it does not follow from CONFIG_KEYS: families are called after the key that holds them.
CONFIG_FAMILIES: dict[str, str] = {"table of max_tokens min_tokens choice": "table of max_tokens min_tokens strategy"}

# "VERB" or "VERB --option": new name; with a verb its options go.
OPTIONS: dict[str, str] = {}

# As in names.json: "heddle.rules", "LM.follow", "LM.generate(draft)", "preset t5-base"; parameters go with a method.
PUBLIC: dict[str, str] = {
    "LM.follow": "LM.stream_many",
    "LM.follow(**wishes)": "LM.stream_many(**options)",
    "LM.writer": "LM.text_generator",
    "LM.predictor": "LM.autoregressive_model",
    "LM.roles": "LM.special_tokens",
    "LM.origin gives roles": "LM.origin gives special_tokens",
    "LM.origin gives ours": "LM.origin gives is_heddle",
    "LM.origin gives words": "LM.origin gives description",
    "LM.tokenizer gives opened": "LM.tokenizer gives encode_prompt",
    "LM.tokenizer gives whole": "LM.tokenizer gives encode_with_special_tokens",
    "LM.tokenizer gives plain": "LM.tokenizer gives to_json",
    "LM.tokenizer gives papers": "LM.tokenizer gives special_tokens_config",
    "LM.generate(**wishes)": "LM.generate(**options)",
    "LM.generate_ids(**wishes)": "LM.generate_ids(**options)",
    "LM.stream(**wishes)": "LM.stream(**options)",
    "heddle.build(**dials)": "heddle.build(**options)",
}

# Regular expression: replacement, for names of weights: r"\.up\.weight$": ".rise.weight".
STATE_DICT: dict[str, str] = {}

# Names in metrics.jsonl: "rate": "learning_rate".
METRICS: dict[str, str] = {
    "rate": "learning_rate",
    "expert_load": "expert_load_imbalance",
    "expert_passed_by": "tokens_without_expert",
}
# Lines of metrics.jsonl that came since, by the key that tells them: a finished save.
ADDED_LINES = ("checkpoint",)

RECIPES = ("first", "characters", "lstm_characters", "lstm", "awd_lstm", "awd_lstm_sgd", "gpt2", "speedrun", "finetune")
ALL_RECIPES = (*RECIPES, "translate", "translate_attention", "translate_lstm")
_VERBS = "chat check convert correct evaluate generate help list plot rescore score show train translate"
VERBS = (*_VERBS.split(), "bench train", "data prepare", "tokenizer train")

# What came, went, or got another value (here with the new one), by category: configs, recipes, options, public,
# state_dict; each as the test names it, such as "configs": ["training.pace"].
TRANSLATION = ("translate", "translate_attention", "translate_lstm")
_PARALLEL = {"kind": "parallel", "source": "train.en", "target": "train.de", "longest": 1 << 20, "encoding": None}
_CHAT = {"kind": "chat", "path": "train.jsonl", "turns": None, "first": "user", "longest": 1 << 24, "encoding": None}
_CSV = "source/csv .path .text .target .delimiter .longest .encoding"
# What a preset has no option for is not printed, for it cannot be set.
NO_OPTIONS = {
    "heads": ("awd_lstm", "awd_lstm_sgd", "lstm", "lstm_characters", "translate_attention", "translate_lstm"),
    "hidden": tuple(set(ALL_RECIPES) - {"awd_lstm", "awd_lstm_sgd", "translate"}),
    "kv_heads": ALL_RECIPES,
    "dropout": ("speedrun",),
}
# New as a whole: a name that ends with * stands for all that begin so.
NEW_OBJECTIVES = (
    *("span_corruption", "denoising", "mixture", "prefix_lm"),
    *("next_sentence", "sentence_order", "replaced_token", "distillation", "preference"),
)
NEW_RECIPES = ("bert", "t5", "bart", "electra", "distill", "dpo")
PACKED_RECIPES = ("first", "characters", "lstm_characters", "gpt2", "speedrun", "finetune")
BPE_RECIPES = ("first", "gpt2", "speedrun", "finetune", "translate", "translate_attention", "translate_lstm")
RUN_VERBS = ("chat", "convert", "correct", "evaluate", "generate", "rescore", "score", "translate")
NEW_KEYS = (
    "callbacks",
    "use",
    "hardware.threads",
    "keep.weights",
    "weight_seed",
    "init_layers",
    "init_vocabulary.kind",
)
ADDED: dict[str, list[str]] = {
    "configs": [
        *(
            "run.init_layers",
            "run.init_vocabulary",
            "init_vocabulary/*",
            "source/preference*",
            "source/chat_preference*",
            "rows/preferences*",
        ),
        *("run.callbacks", "run.use", "hardware.threads", "keep.weights", "run.weight_seed"),
        *("budget*", "variants*", "table of name variants base*"),
        *("larger*", "table of budgets sizes seeds*"),
        *(name if name[0] != "." else f"source/csv{name}" for name in _CSV.split()),
        *("split/auto", "split/auto.fraction", "split/auto.seed", "source/parquet.longest"),
        *(f"source/{kind}.encoding" for kind in ("text", "jsonl", "tsv", "parallel", "chat")),
        *("tokenizer/pretrained", "tokenizer/pretrained.path", "tokenizer/pretrained.special"),
        "table of format dtype vocab.lost",
        *("objective/next_token.z_loss", "objective/sequence.z_loss"),
        *(f"objective/{kind}*" for kind in NEW_OBJECTIVES),
        *("noises/*", "objectives*", "rows/sentence_pairs*", "model/encoder.generator"),
        *("objective/masked_token.static", "objective/masked_token.unit", "rows/packed.recut"),
        *("penalties.no_repeat_ngram", "strategy/beams.early_stopping"),
        "table of max_tokens min_tokens strategy.forced_end",
        *("optimizer/adafactor*", "schedule/rsqrt*", "tokenizer/bpe.order"),
        *("model/encoder.rereading", "rereading*", "pooling/dense_last_token*"),
    ],
    "recipes": [
        *(f"{recipe}: {key}" for recipe in ALL_RECIPES for key in NEW_KEYS),
        *(f"{recipe}: data.split.source.encoding" for recipe in TRANSLATION),
        *(f"{recipe}: objective.z_loss" for recipe in ALL_RECIPES),
        *(f"{recipe}: rows.recut" for recipe in PACKED_RECIPES),
        *(f"{recipe}: tokenizer.order" for recipe in BPE_RECIPES),
        *(f"{recipe}: *" for recipe in NEW_RECIPES),
    ],
    "options": [
        *("check", "check argument 1", "tokenizer train --force", "correct --force", "rescore --force"),
        *(f"{verb} --{name}" for verb in VERBS for name in ("use", "trust-run")),
        *(f"{verb} --best" for verb in RUN_VERBS),
        *(f"{verb} --base" for verb in (*RUN_VERBS, "train")),
        *("heddle --install-completion", "heddle --show-completion", "list argument 1"),
        *("compare", "compare *", "scale", "scale *"),
        *("generate --no-repeat-ngram", "generate --early-stopping", "translate --task"),
        *("help", "help argument 1", "plot", "plot argument 1", "plot --metric", "plot --svg", "plot --force"),
    ],
    "public": [
        *("LM.save", "LM.save(folder)", "heddle.Run", "heddle.load(trust_run)", "heddle.load(base)"),
        *("heddle.register_preset", "heddle.register_recipe", "heddle.train", "heddle.use"),
        *("LM.tokenizer gives lost_bytes", "LM.tokenizer gives lost_bytes(text)", "LM.origin gives held_out"),
        *("preset electra-base", "preset electra-small", "heddle.compare", "heddle.scale"),
        *("LM.tokenizer gives with_special", "LM.tokenizer gives with_special(names)"),
    ],
}
REMOVED: dict[str, list[str]] = {
    "recipes": [f"{recipe}: model.{key}" for key, recipes in NO_OPTIONS.items() for recipe in recipes]
}
# Options of generation; `strategy` names a decoding strategy that the library does not have.
_OPTIONS = """
max_tokens min_tokens forced_end samples seconds max_length_ratio logprobs chunk cache compile temperature top_k top_p
min_p typical seed beams length_penalty coverage groups diversity early_stopping contrast repetition presence frequency
no_repeat_ngram bias strategy window sinks
"""
OPTION_NAMES = _OPTIONS.split()
_NAMES = """
EvaluationTask HeddleError LM LookupDraft Run build compare load presets register_preset register_recipe register_task
rules scale train use
"""
PUBLIC_NAMES = _NAMES.split()
CHANGED: dict[str, dict[str, Any]] = {
    "configs": {
        "run.format": ["int", 3],
        "data.split": ["<split>", {"kind": "auto"}],
        "training.activation_checkpointing": ["none|selective|full", "none"],
        "training.reduction": ["fast|deterministic", "fast"],
    },
    "recipes": {
        **{f"{recipe}: format": 3 for recipe in ALL_RECIPES},
        **{f"{recipe}: data.sources": [_PARALLEL] for recipe in TRANSLATION},
        "finetune: data.sources": [_CHAT],
        **{f"{recipe}: data.split.kind": "auto" for recipe in RECIPES if recipe != "finetune"},
        **{f"{recipe}: data.split.fraction": None for recipe in RECIPES if recipe != "finetune"},
    },
    "options": {"translate --max-tokens": {"default": None, "metavar": None}},
    "public": {
        **{f"LM.{verb}(**options)": OPTION_NAMES for verb in ("stream_many", "generate", "generate_ids", "stream")},
        "LM.score(**reading)": ["window", "stride", "hide", "spaces", "sinks"],
        "heddle.build(**options)": "2 options",
        "heddle.__all__": PUBLIC_NAMES,
    },
}

# Goldens that differ on purpose, each with the reason: "runs: lora: weights", "logits: gpt2".
# N4, N8: bits per byte count the bytes of the rows that are measured, and eight bits for each that unknown tokens hide.
_VALIDATIONS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("muon_packed", "lstm_characters", "growing_horizon"), (5, 11)),
    **dict.fromkeys(("accumulated", "streams", "averaged_alibi", "experts_fixed_sums", "mixed_corpora"), (4, 9)),
    **dict.fromkeys(("qrnn", "lora"), (4, 9)),
    "triggered_sgd": (1, 3, 5, 7, 9, 11, 13, 15),
    "resumed": (5, 11, 20),
}
OTHER_NUMBERS: dict[str, str] = {
    f"runs: experts_fixed_sums: metrics: {line}: {name}": "F10: means over all micro-batches, not those of the last"
    for line in range(20)
    for name in ("expert_load_imbalance", "expert_entropy")
} | {
    f"runs: {run}: metrics: {line}: {name}": "N4, N8: the bytes of the rows that are measured"
    for run, lines in _VALIDATIONS.items()
    for line in lines
    for name in ("bits_per_byte", "unknown_share")
}

# Labelled data and training on it; a name that ends with * stands for all that begin so.
_COLUMNS = ("pair", "label", "score", "group", "separator")
_LABEL_SETS = ("answers", "classes", "none", "scores", "tags")
ADDED["configs"] += [
    *(f"source/{kind}.{column}" for kind in ("csv", "tsv", "jsonl") for column in _COLUMNS),
    *("source/jsonl.tags", "source/squad*", "source/conll*", "rows/examples*"),
    *(f"labels/{kind}*" for kind in _LABEL_SETS),
    *(f"objective/{kind}*" for kind in ("classify", "contrastive", "similarity", "tag")),
    *("objective/span", *(f"objective/span.{key}" for key in ("dropout", "labels", "longest", "output"))),
    *("outputs/multi_label*", "outputs/regression*"),
]
ADDED["configs"] += ["objective/sequence.prefix"]
ADDED["recipes"] += [f"{recipe}: *" for recipe in ("classify", "tag", "answer", "similarity", "embed", "summarize")]
ADDED["recipes"] += [f"{recipe}: objective.prefix" for recipe in TRANSLATION]
ADDED["public"] += [
    "LM.tokenizer gives pair*",
    *(f"LM.{task}*" for task in ("answer", "classify", "fill", "summarize", "tag", "translate")),
]
ADDED["public"] += ["LM.tokenizer gives with_source_prefix*", "heddle.EvaluationTask", "heddle.register_task"]
ADDED["options"] += ["evaluate --task"]
ADDED["options"] += [
    *(f"evaluate --{name}" for name in ("calibrate", "examples", "instruction", "labels", "limit", "seed", "table")),
    *("evaluate --template", "evaluate -k", "evaluate argument 1"),
]
for _verb in ("answer", "classify", "embed", "fill", "serve", "summarize", "tag"):
    ADDED["options"] += [f"{_verb}*"]
ADDED["configs"] += ["table of teacher sha256 facts*"]
ADDED["options"] += ["data teach*"]

# Retrieve-and-edit.
ADDED["configs"] += ["head/pointer_generator*"]
ADDED["configs"] += [f"source/{kind}.prototype" for kind in ("csv", "tsv", "jsonl")]
ADDED["recipes"] += ["retrieve_and_edit: *"]
ADDED["options"] += ["retrieve*"]
ADDED["public"] += ["LM.tokenizer gives source(prototype)"]
ADDED["configs"] += ["bm25*", "table of format by*"]  # the record of a saved index

# kNN memories.
_MEMORY = ("memory", "memory-k", "memory-search", "memory-temperature", "memory-weight")
ADDED["options"] += ["memory*", *(f"{verb} --{name}" for verb in ("evaluate", "generate", "score") for name in _MEMORY)]
ADDED["public"] += ["LM.build_memory*", "LM.with_memory*"]
ADDED["configs"] += ["record*", "neighbours*", "table of factory probes k*", "table of record most digest*"]
ADDED["configs"] += ["table of neighbours search probes*", "table of precision window stride*"]
ADDED["configs"] += ["table of weights shares counts*"]

# Long texts.
ADDED["options"] += ["evaluate --by-position", "evaluate --length", "generate --window"]
ADDED["options"] += [f"{verb} --sinks" for verb in ("evaluate", "generate", "score")]

ADDED["configs"] += ["streaming*", "table of length bucket rows*", "table of window stride hide.sinks"]
ADDED["configs"] += ["table of max_tokens min_tokens strategy.streaming"]

# Transformer-XL.
ADDED["configs"] += ["part/segment_recurrence*"]
ADDED["public"] += ["preset transformer_xl"]

# Looking inside a model.
ADDED["public"] += ["LM.explain*"]
ADDED["options"] += ["explain*"]

# Sounds and other media as sources.
ADDED["configs"] += [f"features/{kind}*" for kind in ("cepstra", "given", "log_mel", "whisper")]
ADDED["configs"] += ["augment/spec_augment*", "augment/speed*", "columns*", "embedding/frames*", "rows/media*"]
ADDED["configs"] += [
    "objective/ctc*",
    "outputs/ctc*",
    "source/array*",
    "source/sound*",
    "model/encoder_decoder.outputs",
]
ADDED["configs"] += ["table of medium dtype sample_rate*"]  # how the arrays of prepared data are stored
ADDED["recipes"] += [f"{recipe}: *" for recipe in ("transcribe", "transcribe_ctc", "transcribe_lstm")]
ADDED["public"] += [f"preset {name}" for name in ("speech_ctc", "speech_lstm", "speech_transformer")]
ADDED["options"] += ["transcribe*"]
ADDED["public"] += ["LM.transcribe*"]
ADDED["configs"] += ["table of beams ctc_weight lm_weight*", "table of beams tokens lm_weight*"]  # searches

# Pictures and video as sources, classes of images, and captions.
ADDED["configs"] += [f"augment/{kind}*" for kind in ("brightness", "crop", "flip")]
ADDED["configs"] += ["embedding/patches.grid", "embedding/patches.stem", "embedding/several*", "embedding/tubelets*"]
ADDED["configs"] += [f"features/{kind}*" for kind in ("audio_visual", "clip", "pixels")]
ADDED["configs"] += [f"source/{kind}*" for kind in ("audio_visual", "image", "image_classes", "video")]
ADDED["configs"] += ["grid/*", "sources", "sources.*", "stem/*"]
ADDED["options"] += ["caption*"]
PICTURES = ("caption", "caption_lstm", "caption_video", "classify_images", "transcribe_audio_visual")
ADDED["recipes"] += [f"{recipe}: *" for recipe in PICTURES]
CAPTIONERS = ("audio_visual_transformer", "image_captioner", "show_attend_tell", "video_captioner")
ADDED["public"] += [f"preset {name}" for name in CAPTIONERS]
ADDED["public"] += ["LM.caption*"]
