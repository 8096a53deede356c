"""Differential test of serving: 200 requests, and how far two servers' answers to each are apart (issue 21, line 4).

Greedy ids are equal up to the first step whose two best logits lie within 1e-4; log-probabilities of prompts, and of
the tokens up to there, within 1e-4; usage and the reason of the end are equal.
"""

import hashlib
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from peer_servers import NAME, PeerServer

from heddle.lm import LM, Origin
from heddle.models.presets import PRESETS
from heddle.text.tokenizers import ByteTokenizer

REQUESTS, LIMIT, TOP = 200, 1e-4, 5
ASCII = [65 + 13 * at % 58 for at in range(101)]  # ids of the small model, each of them a character
LENGTHS = (1, 7, 31, 32, 33, 100)  # of prompts of ids
SHAPE: dict[str, int | float] = {
    "layers": 2, "width": 128, "heads": 4, "kv_heads": 2, "hidden": 256, "context": 512,
}  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
TEXTS = (
    "A heddle lifts the right threads so that the pattern can be woven.",
    "The weaver raised half of the warp and passed the shuttle through, again and again, until the cloth was long.",
    "Grüße aus Köln 🙂, 中文 и немного русского",
    "def add(a, b):\n    return a + b\n",
    "Q: What is 7 times 8?\nA:",
)


def exact_model() -> LM:
    """Return a small Llama whose weights are the same bits on every machine: they come from integers."""
    tokenizer = ByteTokenizer().train([])
    model = PRESETS["llama"].config(**SHAPE, vocab=tokenizer.vocab).build(0)
    with torch.no_grad():
        for number, weight in enumerate(model.parameters()):
            mixed = (torch.arange(weight.numel(), dtype=torch.int64) + 1_000_003 * number) * 2_654_435_761 % 2**32
            mixed = (mixed ^ (mixed >> 15)) * 2_246_822_519 % 2**32  # a hash: no two weights alike
            uniform = ((mixed >> 12).double() / 2**20 - 0.5).reshape(weight.shape)
            weight.copy_(1 + uniform / 4 if weight.dim() == 1 else uniform / 2)
    return LM(model, tokenizer, Origin(template=TEMPLATE))


def weight_hash(folder: Path) -> str:
    """Return the hash of a folder's weights."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def requests(sample: Sequence[int]) -> list[tuple[str, dict[str, Any]]]:
    """Draw requests of every kind that both servers have the same words for: routes and bodies.

    Prompts of ids are cut from a sample, which has whole characters: vLLM 0.32 looks for stop strings in a prompt too
    whose last ids are none. Ids that never stand together are no good: a model of many layers is 4e-4 from its float64.
    """
    draw = random.Random(21)
    return [_completion(draw, sample) if draw.random() < 0.8 else _chat(draw) for _ in range(REQUESTS)]


def _common(draw: random.Random) -> dict[str, Any]:
    body: dict[str, Any] = {"model": NAME, "temperature": 0, "max_tokens": draw.randint(1, 24)}
    body["return_token_ids"] = True
    match draw.randrange(8):
        case 0:
            body["stop"] = draw.choice(["e", "\n", "ab", " the"])
            body["logit_bias"] = {str(ord(body["stop"][0])): 5.0}
        case 1:
            body["logit_bias"] = {str(draw.randrange(32, 120)): draw.uniform(-6, 6) for _ in range(3)}
        case 2:
            body["frequency_penalty"] = draw.choice([-0.5, 0.5, 1.5])
        case 3:
            body["presence_penalty"] = draw.choice([-0.5, 0.5, 1.5])
        case 4:
            body["min_tokens"] = body["max_tokens"]
    return body


def _completion(draw: random.Random, sample: Sequence[int]) -> tuple[str, dict[str, Any]]:
    text, start, length = " ".join(draw.choices(TEXTS, k=2)), draw.randrange(len(sample)), draw.choice(LENGTHS)
    prompts: list[Any] = [
        text[: draw.randint(1, len(text))],
        [sample[(start + at) % len(sample)] for at in range(length)],
    ]
    more = {"prompt": draw.choice(prompts), "logprobs": TOP, "echo": draw.random() < 0.5}
    return "/v1/completions", _common(draw) | more


def _chat(draw: random.Random) -> tuple[str, dict[str, Any]]:
    turns = [{"role": role, "content": draw.choice(TEXTS)} for role in ("user", "assistant", "user")]
    messages = turns[draw.choice([0, 2]) :]
    if draw.random() < 0.3:
        messages = [{"role": "system", "content": "Be brief."}, *messages]
    return "/v1/chat/completions", _common(draw) | {"messages": messages, "logprobs": True, "top_logprobs": TOP}


def ask(server: PeerServer, asked: list[tuple[str, dict[str, Any]]], together: int = 8) -> list[dict[str, Any]]:
    """Send requests, several at a time; return what matters of each answer."""
    with ThreadPoolExecutor(together) as pool:
        return list(pool.map(lambda one: kept(one[0], server.post(*one)), asked))


def kept(path: str, answer: dict[str, Any]) -> dict[str, Any]:
    """Return what matters of an answer: ids, log-probabilities, the gaps between the two best, usage, why it ended."""
    (choice,) = answer["choices"]
    if path.endswith("chat/completions"):
        scored = [
            (one["logprob"], [top["logprob"] for top in one["top_logprobs"]]) for one in choice["logprobs"]["content"]
        ]
        text = choice["message"]["content"] or ""
    else:
        found = choice["logprobs"]
        tops: list[Any] = [None if top is None else list(top.values()) for top in found["top_logprobs"]]
        scored = list(zip(found["token_logprobs"], tops, strict=True))
        text = choice["text"]
    gaps = [None if not top else _gap(top) for _, top in scored]
    return {
        "ids": choice["token_ids"],
        "text": text,
        "logprobs": [logprob for logprob, _ in scored],
        "gaps": gaps,
        "usage": [answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]],
        "end": choice["finish_reason"],
    }


def _gap(tops: list[float]) -> float:
    best = sorted(tops, reverse=True)[:2]
    return best[0] - best[-1] if len(best) == 2 else float("inf")


def difference(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Compare two answers to a request: the largest difference of log-probabilities, and a fault if there is one."""
    both = zip(ours["ids"], theirs["ids"], strict=False)
    count = next((at for at, pair in enumerate(both) if pair[0] != pair[1]), None)
    if count is None and len(ours["ids"]) != len(theirs["ids"]):
        count = min(len(ours["ids"]), len(theirs["ids"]))
    before = len(theirs["logprobs"]) - len(theirs["ids"])  # of the prompt
    shared = None if count is None else before + count
    pairs = zip(ours["logprobs"][:shared], theirs["logprobs"][:shared], strict=False)
    apart = max((abs(a - b) for a, b in pairs if a is not None and b is not None), default=0.0)
    found: dict[str, Any] = {"apart": apart, "tie": None, "fault": None}
    if apart > LIMIT:
        found["fault"] = f"log-probabilities {apart:.2e} apart"
    elif [one is None for one in ours["logprobs"][:shared]] != [one is None for one in theirs["logprobs"][:shared]]:
        found["fault"] = "log-probabilities of other tokens"
    elif count is not None:
        gap = theirs["gaps"][before + count] if count < len(theirs["ids"]) else float("inf")
        found |= {"tie": gap} if gap is not None and gap <= LIMIT else {"fault": f"ids differ at {count}, gap {gap}"}
    elif (ours["usage"], ours["end"]) != (theirs["usage"], theirs["end"]):
        found["fault"] = f"{ours['usage']}, {ours['end']} against {theirs['usage']}, {theirs['end']}"
    return found


def summary(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> dict[str, Any]:
    """Compare the answers to all requests."""
    each = [difference(mine, other) for mine, other in zip(ours, theirs, strict=True)]
    return {
        "requests": len(each),
        "largest_difference": max(one["apart"] for one in each),
        "ties": sum(one["tie"] is not None for one in each),
        "faults": [f"{number}: {one['fault']}" for number, one in enumerate(each) if one["fault"]],
    }
