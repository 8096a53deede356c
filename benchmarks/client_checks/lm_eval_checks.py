"""lm-eval through HTTP against its class for Heddle in this process, on the same models: HEDDLE_FOLDERS has them.

Log-likelihoods of continuations and of whole texts, generated texts, and two tasks made from local files.
"""

import json
import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from checks import BASE, KEY, Checks, want

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ |= {"OPENAI_API_KEY": KEY, "HF_HOME": tempfile.mkdtemp(prefix="lm-eval-")}

from harness import LIMIT, TEXTS, apart, requests, write_tasks
from lm_eval import simple_evaluate
from lm_eval.api.registry import get_model
from lm_eval.tasks import TaskManager

check = Checks("lm_eval")
CONTEXT = 512
import_module("lm_eval.models")
import_module("heddle.harness")  # registers its class


def compare(name: str, folder: str) -> None:
    """Compare both classes on one model."""
    ours = get_model("heddle")(pretrained=folder, device="cpu")
    served = get_model("local-completions")(
        base_url=f"{BASE}/completions", model=name, tokenizer_backend="remote", auth_token=KEY, batch_size=4,
        max_length=CONTEXT, max_retries=1,
    )  # fmt: skip

    @check(f"{name}: tokens and the token that begins a text")
    def _() -> None:
        want(served.tok_encode(TEXTS[0]) == ours.tok_encode(TEXTS[0], add_special_tokens=False))
        want(served.prefix_token_id == ours.prefix_token_id, served.prefix_token_id)

    @check(f"{name}: log-likelihoods of continuations, in batches of lists of ids")
    def _() -> None:
        pairs = [(text[:cut].rstrip(), text[len(text[:cut].rstrip()) :]) for text in TEXTS for cut in (9, 20, 40)]
        pairs += [("", text[:40]) for text in TEXTS]
        theirs, mine = (one.loglikelihood(requests(pairs), disable_tqdm=True) for one in (served, ours))
        difference = apart([score for score, _ in theirs], [score for score, _ in mine])
        want(difference < LIMIT and [g for _, g in theirs] == [g for _, g in mine], difference)

    @check(f"{name}: log-likelihoods of whole texts")
    def _() -> None:
        whole = requests([(" ".join(TEXTS[: n + 1]),) for n in range(len(TEXTS))])
        difference = apart(*(one.loglikelihood_rolling(whole, disable_tqdm=True) for one in (served, ours)))
        want(difference < LIMIT, difference)

    @check(f"{name}: generated texts")
    def _() -> None:
        asked = {"until": [".", "\n"], "max_gen_toks": 12, "do_sample": False}
        rows = [[(text[:20], dict(asked)) for text in TEXTS] for _ in range(2)]
        found = [
            one.generate_until(requests(own), disable_tqdm=True) for one, own in zip((served, ours), rows, strict=True)
        ]
        want(found[0] == found[1], found)

    @check(f"{name}: metrics and every log-likelihood of two tasks")
    def _() -> None:
        with tempfile.TemporaryDirectory() as work:
            names, manager = write_tasks(Path(work)), TaskManager(include_path=work, include_defaults=False)
            found = [
                simple_evaluate(model=one, tasks=names, task_manager=manager, bootstrap_iters=0, verbosity="ERROR")
                for one in (served, ours)
            ]
        keys = [(n, k) for n in names for k, v in found[1]["results"][n].items() if isinstance(v, float)]
        difference = apart(*([one["results"][n][k] for n, k in keys] for one in found))
        rows = [[score(r) for n in names for s in one["samples"][n] for r in s["filtered_resps"]] for one in found]
        want(max(difference, apart(*rows)) < LIMIT and len(rows[0]) > 50, (difference, apart(*rows)))


def score(response: Any) -> float:
    """Return the log-likelihood in a response."""
    return float(response[0] if isinstance(response, list | tuple) else response)


for name, folder in json.loads(os.environ["HEDDLE_FOLDERS"]).items():
    compare(name, folder)
