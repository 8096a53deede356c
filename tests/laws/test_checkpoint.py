"""The laws of checkpoints (DESIGN §3): load(save(m)) = m for every model, and damage is detected."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from laws.cases import CONTEXT, Case, cases, ids, loud

from heddle.checkpoints import RunSource
from heddle.checkpoints.store import Snapshot, Store, manifest
from heddle.core import DamageError, HeddleError, decode, encode, replace
from heddle.models.networks import LanguageModel, ModelConfig
from heddle.text.tokenizers import ByteTokenizer, Tokenizer

VOCAB = 257


def byte_tokenizer(folder: Path) -> tuple[Tokenizer, str]:
    """Return the byte tokenizer and its file's text."""
    tokenizer = ByteTokenizer().train(iter(()))
    tokenizer.save(folder / "tokenizer.json")
    return tokenizer, (folder / "tokenizer.json").read_text()


def save(model: LanguageModel, folder: Path) -> Path:
    """Save a model as a run; return the checkpoint's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "config.json": json.dumps({"model": encode(model.config)}),
        "tokenizer.json": byte_tokenizer(folder)[1],
    }
    return Store(folder / "checkpoints").save(Snapshot(1, {"model": model.weights()}, {"step": 1}, texts))


# --- the laws ---------------------------------------------------------------------------------------------------------


def load_undoes_save(case: Case, folder: Path, save: Callable[[LanguageModel, Path], Path] = save) -> None:
    """A model comes back with its config, every bit of its weights, its tokenizer, and so its outputs."""
    model = loud(replace(case.config, vocab=VOCAB)).float()
    model.position.reset_buffers()
    save(model, folder)
    source = RunSource(folder)
    loaded = source.model()
    assert decode(ModelConfig, encode(loaded.config)) == model.config
    ours, theirs = model.weights(), loaded.weights()
    assert ours.keys() == theirs.keys(), "other names"
    for name, weight in ours.items():
        assert weight.dtype == theirs[name].dtype and torch.equal(weight, theirs[name]), f"{name} has changed"
    inputs = ids(2, CONTEXT)
    assert torch.equal(model.logits(inputs), loaded.logits(inputs)), "the model answers otherwise"
    assert source.tokenizer().encode("héllo") == byte_tokenizer(folder)[0].encode("héllo")


def damage_is_detected(case: Case, folder: Path) -> None:
    """No file of a checkpoint can lose a bit, its end, or itself without a refusal that names it."""
    path = save(replace(case.config, vocab=VOCAB).build(), folder)
    for file in sorted(path.iterdir()):
        whole = file.read_bytes()
        for harmed in harms(whole):
            if harmed is None:
                file.unlink()
            else:
                file.write_bytes(harmed)
            try:
                RunSource(folder).model()
            except HeddleError as error:
                assert isinstance(error, DamageError), f"{file.name}: damage is told as {error}"
                assert file.name in str(error) and "\n" not in str(error)
            else:
                raise AssertionError(f"{file.name}: damage passed unseen")
            file.write_bytes(whole)
    RunSource(folder).model()


def harms(whole: bytes) -> Iterator[bytes | None]:
    """Yield the bytes with a bit flipped at either end and in the middle, cut, emptied, and gone."""
    for at in (0, len(whole) // 2, len(whole) - 1):
        flipped = bytearray(whole)
        flipped[at] ^= 4
        yield bytes(flipped)
    yield from (whole[:-1], b"", None)


@pytest.mark.parametrize("case", cases(), ids=lambda c: c.name)
def test_load_undoes_save(case: Case, tmp_path: Path) -> None:
    load_undoes_save(case, tmp_path)


PRESETS = [case for case in cases() if case.name.startswith("preset=")]


@pytest.mark.parametrize("case", PRESETS, ids=lambda c: c.name)
def test_damage_is_detected(case: Case, tmp_path: Path) -> None:
    damage_is_detected(case, tmp_path)


# --- planted bugs -----------------------------------------------------------------------------------------------------


def rounding(model: LanguageModel, folder: Path) -> Path:
    """Save weights that went through a smaller dtype."""
    other = model.config.build()
    other.load_weights({name: weight.bfloat16().float() for name, weight in model.weights().items()})
    assert isinstance(other, LanguageModel)
    return save(other, folder)


def swapping(model: LanguageModel, folder: Path) -> Path:
    """Save two weights of one shape under each other's names."""
    weights = dict(model.weights())
    names = [n for n, w in weights.items() if w.shape == next(reversed(weights.values())).shape]
    weights[names[0]], weights[names[-1]] = weights[names[-1]].clone(), weights[names[0]].clone()
    other = model.config.build()
    other.load_weights(weights)
    assert isinstance(other, LanguageModel)
    return save(other, folder)


@pytest.mark.parametrize("bug", [rounding, swapping], ids=lambda bug: bug.__name__)
def test_a_planted_bug_of_saving_is_found(bug: Any, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="has changed"):
        load_undoes_save(next(case for case in PRESETS if case.name == "preset=gpt2"), tmp_path, bug)


def test_a_checkpoint_that_is_not_verified_breaks_the_law(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "_compare", lambda *_: None)
    with pytest.raises(AssertionError, match=r"passed unseen|told as"):
        damage_is_detected(PRESETS[0], tmp_path)
