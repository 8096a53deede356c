"""lm-eval's model class `heddle` beside its `hf`, on the same weights and on two tasks made here from local files.

    python benchmarks/harness.py [--model FOLDER ...] [--out FILE]

Without a folder, small GPT-2 and Llama models with random weights are made. For each model: the largest relative
difference of log-likelihoods (of continuations, and of whole texts in windows), how many generated texts are equal,
and the metrics of both tasks by both classes. One JSON line a model. Needs lm-eval and transformers; `make harness`
installs them in an environment of their own.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from entry_point import run_main
from results import commit, device

TEXTS = (
    "A heddle lifts the right threads so that the pattern can be woven.",
    "The weaver raised half of the warp and passed the shuttle through, again and again, until the cloth was long.",
    "Stocks fell on Monday after the central bank spoke.",
    "It rained all night, the river rose, and by the morning the lower road was under water from mill to bridge.",
)
CHOICE = """
task: heddle_choice
dataset_path: json
dataset_kwargs: {data_files: {test: CHOICE_FILE}}
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_choice: "{{choices}}"
doc_to_target: "{{label}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
WORDS = """
task: heddle_words
dataset_path: json
dataset_kwargs: {data_files: {test: WORDS_FILE}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: bits_per_byte}, {metric: word_perplexity}]
"""
LIMIT = 1e-6  # the largest relative difference in float32


def write_tasks(folder: Path) -> list[str]:
    """Write two tasks and their data: a choice among words, and whole texts."""
    words = [text.split() for text in TEXTS]
    rows = [
        {"question": " ".join(own[:n]), "choices": [own[n], own[0], other[n]], "label": 0}
        for own, other in zip(words, words[1:] + words[:1], strict=True)
        for n in range(2, 7)
    ]
    (folder / "choice.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "words.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    for name, text in (("choice", CHOICE), ("words", WORDS)):
        filled = text.replace(f"{name.upper()}_FILE", json.dumps(str(folder / f"{name}.jsonl")))
        (folder / f"{name}.yaml").write_text(filled)
    return ["heddle_choice", "heddle_words"]


def small_models(folder: Path, context: int = 64) -> list[Path]:
    """Make small models with random weights that are far from uniform, and a byte-level tokenizer."""
    import tokenizers
    import transformers as hf
    from tokenizers import decoders, models, pre_tokenizers, trainers

    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<|end|>"], initial_alphabet=alphabet)
    made.train_from_iterator(TEXTS, trainer)
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<|end|>", eos_token="<|end|>", pad_token="<|end|>"
    )
    ends = {"bos_token_id": 0, "eos_token_id": 0, "vocab_size": len(tokenizer)}
    gpt2 = hf.GPT2Config(n_positions=context, n_embd=32, n_layer=2, n_head=2, **ends)
    llama = hf.LlamaConfig(
        max_position_embeddings=context, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, pad_token_id=0, **ends,
    )  # fmt: skip
    found = []
    for name, config in (("gpt2", gpt2), ("llama", llama)):
        torch.manual_seed(0)
        model = hf.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for weight in model.parameters():
                weight += 0.1 * torch.randn(weight.shape)
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
        found.append(folder / name)
    return found


def requests(pairs: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Return what the harness passes to a model."""
    return [SimpleNamespace(args=pair) for pair in pairs]


def apart(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the largest relative difference."""
    return max(abs(a - b) / max(abs(b), 1e-30) for a, b in zip(ours, theirs, strict=True))


def compare(folder: Path, work: Path, tokens: int = 12) -> dict[str, Any]:
    """Compare both classes on one model."""
    from lm_eval import simple_evaluate
    from lm_eval.api.registry import get_model
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    import_module("heddle.harness")  # registers its class; it can be imported where lm-eval is alone
    ours = get_model("heddle")(pretrained=str(folder), device="cpu")
    # its cache takes two cuts of one text for one request, and gives both the first one's continuation
    theirs = HFLM(pretrained=str(folder), device="cpu", dtype="float32", batch_size=4, logits_cache=False)
    pairs = [(text[:cut].rstrip(), text[len(text[:cut].rstrip()) :]) for text in TEXTS for cut in (9, 20, 40)]
    pairs += [("", text[:40]) for text in TEXTS] + [(TEXTS[1] + " " + TEXTS[3], " The end")]
    scored = [model.loglikelihood(requests(pairs), disable_tqdm=True) for model in (ours, theirs)]
    whole = requests([(" ".join(TEXTS[: n + 1]),) for n in range(len(TEXTS))])
    rolled = [model.loglikelihood_rolling(whole, disable_tqdm=True) for model in (ours, theirs)]
    asked = {"until": [".", "\n"], "max_gen_toks": tokens, "do_sample": False}
    written = [
        model.generate_until(requests([(text[:20], dict(asked)) for text in TEXTS]), disable_tqdm=True)
        for model in (ours, theirs)
    ]
    names, manager = write_tasks(work), TaskManager(include_path=str(work), include_defaults=False)
    tasks = [
        simple_evaluate(model=model, tasks=names, task_manager=manager, bootstrap_iters=0, verbosity="ERROR")["results"]
        for model in (ours, theirs)
    ]
    metrics = [(name, key) for name in names for key, value in tasks[1][name].items() if isinstance(value, float)]
    return {
        "name": folder.name,
        "loglikelihood_apart": apart([s for s, _ in scored[0]], [s for s, _ in scored[1]]),
        "same_greedy": f"{sum(a == b for (_, a), (_, b) in zip(*scored, strict=True))}/{len(pairs)}",
        "rolling_apart": apart(*rolled),
        "same_text": f"{sum(a == b for a, b in zip(*written, strict=True))}/{len(TEXTS)}",
        "tasks": {f"{name} {key}": [tasks[0][name][key], tasks[1][name][key]] for name, key in metrics},
        "tasks_apart": apart(*([own[name][key] for name, key in metrics] for own in tasks)),
    }


def main() -> None:
    """Compare on the models that are given, or on small ones."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, nargs="*", help="Hugging Face folders")
    parser.add_argument("--out", type=Path, help="also write the lines to this file")
    given = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory() as place:
        for folder in given.model or small_models(Path(place)):
            work = Path(place) / f"tasks-{folder.name}"
            work.mkdir()
            lines.append(compare(folder, work) | {"commit": commit(), "device": device()})
            print(json.dumps(lines[-1]), flush=True)
    if given.out is not None:
        given.out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if any(max(line["loglikelihood_apart"], line["rolling_apart"], line["tasks_apart"]) > LIMIT for line in lines):
        raise SystemExit(f"log-likelihoods are more than {LIMIT} apart")


if __name__ == "__main__":
    run_main(main)
