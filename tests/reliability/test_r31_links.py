"""R31: each name in a run folder as a link: nothing is written, cut, pruned or copied outside, whatever the verb."""

import io
import shutil
import sys
from pathlib import Path

import pytest
from reliability.harness import tiny, write_text

from heddle.cli.main import main
from heddle.core import override
from heddle.training import RunConfig, resolve_run, train_run

SECRET = "swordfish"
FILES = [
    ".lock",
    "chat_template.jinja",
    "config.json",
    "environment.json",
    "metrics.jsonl",
    "samples.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer_target.json",
    "checkpoints/step-00000004/chat_template.jinja",
    "checkpoints/step-00000004/config.json",
    "checkpoints/step-00000004/manifest.json",
    "checkpoints/step-00000004/model.safetensors",
    "checkpoints/step-00000004/tokenizer_config.json",
]
FOLDERS = ["checkpoints", "tensorboard", "checkpoints/step-00000004", "checkpoints/step-00000001"]
VERBS = {
    "train": ["train", "runs/tiny", "training.steps=6"],
    "generate": ["generate", "the", "-m", "runs/tiny", "--max-tokens", "2"],
    "chat": ["chat", "-m", "runs/tiny", "--max-tokens", "2"],
    "convert": ["convert", "runs/tiny", "made", "--to", "hf"],
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a run that keeps two checkpoints, and writes a sample after each step."""
    root = tmp_path_factory.mktemp("trained")
    config: RunConfig = tiny(write_text(root / "text.txt"), training__steps=4, every__save=2, every__sample=1)
    config = override(config, "model", {"kind": "preset", "name": "gpt2", "width": 16, "layers": 1, "heads": 2})
    train_run(resolve_run(config, [], root / "runs", {}), root / "runs", writer_for=lambda *_: lambda _: "a sample")
    return root


def victims(root: Path, run: Path) -> Path:
    """Make what links lead to: a text, and a folder with another run's checkpoints."""
    outside = root / "outside"
    outside.mkdir()
    (outside / "secret").write_text(SECRET)
    shutil.copytree(run / "checkpoints", outside / "folder")
    return outside


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b"" for p in folder.rglob("*")}


def attack(trained: Path, root: Path, name: str, verb: str, patch: pytest.MonkeyPatch) -> None:
    """Put a link in the place of a name, run a verb, and look at what it led to and at all that was written."""
    shutil.copytree(trained, root)
    patch.chdir(root)
    patch.setattr(sys, "stdin", io.StringIO("hello\n"))
    run = root / "runs" / "tiny"
    outside = victims(root, run)
    path = run / name
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.symlink_to(outside / ("folder" if name in FOLDERS else "secret"))
    before = tree(outside)
    assert main(VERBS[verb]) in (0, 2, 3), f"{verb}, {name} a link"
    assert tree(outside) == before, f"{verb}, {name} a link: changed what lies outside"
    written = [p for p in root.rglob("*") if p.is_file() and not p.is_symlink() and outside not in p.parents]
    assert not [p for p in written if SECRET.encode() in p.read_bytes()], f"{verb}, {name} a link: copied from outside"


def trial(trained: Path, tmp_path: Path, verbs: list[str]) -> None:
    cases = [(name, verb) for name in (*FILES, *FOLDERS) for verb in verbs]
    for number, (name, verb) in enumerate(cases):
        with pytest.MonkeyPatch.context() as patch:
            attack(trained, tmp_path / str(number), name, verb, patch)
    print(f"R31: {len(cases)}/{len(cases)} links in a run folder: 0 bytes written, cut or copied outside")


def test_r31_training_follows_no_link_out_of_its_folder(trained: Path, tmp_path: Path) -> None:
    trial(trained, tmp_path, ["train"])


@pytest.mark.full
def test_r31_full(trained: Path, tmp_path: Path) -> None:
    trial(trained, tmp_path, list(VERBS))
