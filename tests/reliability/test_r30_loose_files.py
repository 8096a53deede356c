"""R30: config, tokenizer and chat template that lie loose in a run or in prepared data, damaged or swapped: none is
used unless the field is told, and never another tokenizer than the checkpoint's."""

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from reliability.harness import tiny, trainer_for, write_text

from heddle.checkpoints.store import Checkpoint, Store, with_checksum
from heddle.core import DamageError, HeddleError, diff
from heddle.data.shards import Prepared, open_prepared
from heddle.text.chat import TEMPLATE
from heddle.text.tokenizers import TOKENIZER, CharacterTokenizer, load_tokenizer
from heddle.training import RunConfig, resolve_run
from heddle.training.assemble import find_tokenizer

CHATS = [{"messages": [{"role": "user", "content": f"say {n}"}, {"role": "assistant", "content": "the " * (n % 7 + 1)}]}
         for n in range(60)]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a run on conversations, which has a chat template too, for four steps."""
    root = tmp_path_factory.mktemp("trained")
    (root / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in CHATS))
    trainer_for(config(root), root / "runs" / "tiny").fit()
    return root / "runs"


def config(root: Path) -> RunConfig:
    data = {"sources": [{"kind": "chat", "path": str(root / "chats.jsonl")}], "template": "plain"}
    return tiny(write_text(root / "text.txt"), training__steps=4, every__save=2, data=data)


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "runs")) / "tiny"


def newest(run: Path) -> Checkpoint:
    found = Store(run / "checkpoints").newest()
    assert found is not None
    return found


def prepared(run: Path) -> Prepared:
    (folder,) = (path for path in (run.parent / ".data").iterdir() if path.is_dir())
    found = open_prepared(folder)
    assert found is not None
    return found


def flips(path: Path, count: int, parses: bool) -> Iterator[None]:
    """Flip one bit of a file, anew each time, so that it stays text and, where asked, JSON of another meaning."""
    whole, draw = path.read_bytes(), random.Random(30)
    while count:
        data = bytearray(whole)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        try:
            if parses and json.loads(data) == json.loads(whole):
                continue
            data.decode()
        except ValueError:
            continue
        path.write_bytes(data)
        count -= 1
        yield
    path.write_bytes(whole)


def test_a_config_with_another_value_is_refused_by_its_field_or_told(run: Path) -> None:
    path = run / "config.json"
    plain = json.loads(path.read_text())
    plain["training"]["clip"] = 3.0
    path.write_text(json.dumps(plain))
    with pytest.raises(DamageError, match=r"training\.clip: want 1\.0, the value in step-00000004, found 3\.0"):
        resolve_run(run, [], run.parent, {})
    assert resolve_run(run, [("training.clip", 1.0)], run.parent, {}).config.training.clip == 1.0
    del plain["checksum"]
    path.write_text(json.dumps(plain))
    found = resolve_run(run, [], run.parent, {})
    assert found.before is not None
    assert [str(change) for change in diff(found.before, found.config)] == ["training.clip: 1.0 -> 3.0"]


def test_a_missing_config_and_tokenizer_are_those_of_the_checkpoint(run: Path) -> None:
    texts = newest(run).texts
    for name in ("config.json", TOKENIZER, TEMPLATE):
        (run / name).unlink()
    found = resolve_run(run, [("training.steps", 5)], run.parent, {})
    trainer_for(found.config, run).fit()
    assert all((run / name).read_text() == texts[name] for name in (TOKENIZER, TEMPLATE))
    assert newest(run).step == 5 and newest(run).texts[TOKENIZER] == texts[TOKENIZER]


def test_another_tokenizer_or_template_in_the_folder_is_refused(run: Path) -> None:
    wanted = resolve_run(run, [], run.parent, {}).config
    CharacterTokenizer().train(["some other letters"]).save(run / TOKENIZER)
    with pytest.raises(DamageError, match=r"tokenizer\.json: not the tokenizer of step-00000004"):
        trainer_for(wanted, run)
    (run / TOKENIZER).unlink()
    (run / TEMPLATE).write_text("another")
    with pytest.raises(DamageError, match=r"chat_template\.jinja: not the chat template of step-00000004"):
        trainer_for(wanted, run)


def test_an_older_config_or_another_runs_is_told_by_field(run: Path) -> None:
    plain = {k: v for k, v in json.loads((run / "config.json").read_text()).items() if k != "checksum"}
    (run / "config.json").write_text(json.dumps(with_checksum(plain | {"seed": 7})))
    found = resolve_run(run, [], run.parent, {})
    assert found.before is not None and [c.path for c in diff(found.before, found.config)] == ["seed"]


def trial(run: Path, count: int) -> None:
    settled, found, data = resolve_run(run, [], run.parent, {}).config, newest(run), prepared(run)
    accepted = 0
    for _ in flips(run / "config.json", count, parses=True):
        try:
            resolved = resolve_run(run, [], run.parent, {})
        except HeddleError:
            continue
        assert resolved.before is not None
        accepted += resolved.config != settled and not diff(resolved.before, resolved.config)
    right = load_tokenizer(run / TOKENIZER).fingerprint
    for _ in flips(run / TOKENIZER, count, parses=True):
        try:
            find_tokenizer(settled, run, None, found)
            accepted += load_tokenizer(run / TOKENIZER).fingerprint != right
        except HeddleError:
            continue
    for _ in flips(data.tokenizer, count, parses=True):
        try:
            accepted += data.load_tokenizer().fingerprint != right
        except HeddleError:
            continue
    for _ in flips(run / TEMPLATE, count, parses=False):
        with pytest.raises(HeddleError):
            find_tokenizer(settled, run, None, found)
    for _ in flips(data.folder / TEMPLATE, count, parses=False):
        with pytest.raises(DamageError):
            _ = data.template
    print(f"R30: {accepted} of {5 * count} flipped bits in loose files accepted unseen")
    assert accepted == 0


def test_r30_flipped_bits_in_loose_files_are_seen(run: Path) -> None:
    trial(run, 20)


@pytest.mark.full
def test_r30_full(run: Path) -> None:
    trial(run, 200)
