"""lm-eval's model class `heddle` gives the numbers of its `hf` on the same weights; without lm-eval a line says so."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from scripts import script

WANTS = "needs lm-eval: pip install 'heddle[harness]'"
without = pytest.mark.skipif(find_spec("lm_eval") is None, reason="lm-eval is not installed; `make harness` runs it")


@pytest.mark.skipif(find_spec("lm_eval") is not None, reason="lm-eval is installed")
def test_without_lm_eval_one_line_says_what_to_install() -> None:
    code = "from heddle.core import MissingExtra\ntry:\n import heddle.harness\nexcept MissingExtra as e:\n print(e)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"heddle.harness {WANTS}"


@without
@pytest.mark.filterwarnings("ignore")
def test_both_classes_agree_on_scores_windows_texts_and_two_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    benchmark = script("harness")
    for folder in benchmark.small_models(tmp_path):
        work = tmp_path / f"tasks-{folder.name}"
        work.mkdir()
        found = benchmark.compare(folder, work)
        assert max(found["loglikelihood_apart"], found["rolling_apart"], found["tasks_apart"]) < benchmark.LIMIT
        assert found["same_greedy"] == "17/17" and found["same_text"] == "4/4" and len(found["tasks"]) == 4


@without
@pytest.mark.filterwarnings("ignore")
def test_a_run_is_a_model_and_wrong_requests_are_refused(tmp_path: Path) -> None:
    from cli.runs import CONTEXT, save_run
    from lm_eval.api.registry import get_model

    import heddle
    from heddle.core import ConfigError, UsageError
    from heddle.harness import HeddleLM

    assert get_model("heddle") is HeddleLM
    save_run(tmp_path / "run")
    model, lm = HeddleLM(pretrained=str(tmp_path / "run"), device="cpu"), heddle.load(tmp_path / "run")
    ((found, _),) = model.loglikelihood([SimpleNamespace(args=("a b", " c d"))], disable_tqdm=True)
    assert found == pytest.approx(lm.score(" c d", context="a b").logprob, rel=1e-5)
    options = {"max_gen_toks": 5, "until": ["q"]}
    (text,) = model.generate_until([SimpleNamespace(args=("a b", options))])
    assert text == lm.generate("a b", max_tokens=5, temperature=0, stop="q")
    with pytest.raises(UsageError, match=r"generation_kwargs: want until, .*, got num_beams"):
        model.generate_until([SimpleNamespace(args=("a", {"num_beams": 2}))])
    with pytest.raises(ConfigError, match=f"max_gen_toks: want fewer than the model's {CONTEXT} tokens, got 256"):
        model.generate_until([SimpleNamespace(args=("a", {}))])
    with pytest.raises(UsageError, match=f"want continuations of at most {CONTEXT} tokens, got one of 60"):
        model.loglikelihood([SimpleNamespace(args=("a", "b" * 60))], disable_tqdm=True)
    with pytest.raises(ConfigError, match=f"max_length: want 1 to the model's context of {CONTEXT}, got 99"):
        HeddleLM(pretrained=str(tmp_path / "run"), max_length=99)
