"""R35: a model is loaded while a trainer that keeps one checkpoint saves after each step: every load succeeds."""

import json
import threading
from pathlib import Path

import pytest
from cli.runs import TOKENIZER, config, save_run

from heddle.checkpoints import RunSource
from heddle.checkpoints.store import Snapshot, Store
from heddle.core import encode


def trial(tmp_path: Path, loads: int) -> None:
    run, ended, saves = tmp_path / "run", threading.Event(), 0
    model = save_run(run)
    store = Store(run / "checkpoints", keep_last=1, keep_best=0)
    texts = {"config.json": json.dumps({"model": encode(config())}), "tokenizer.json": json.dumps(TOKENIZER.to_json())}

    def train() -> None:
        nonlocal saves
        while not ended.is_set():
            saves += 1
            store.save(Snapshot(10 + saves, {"model": model.weights(), "optimizer": model.weights()}, {}, texts))

    trainer = threading.Thread(target=train)
    trainer.start()
    try:
        done = 0
        while done < loads or saves < loads // 2:  # so that the trainer was in the way, however busy the machine
            source = RunSource(run)
            assert source.checkpoint.step >= 10
            source.model()
            done += 1
    finally:
        ended.set()
        trainer.join()
    print(f"R35: {done}/{done} loads beside {saves} saves")


def test_r35_readers_beside_a_trainer_load_every_time(tmp_path: Path) -> None:
    trial(tmp_path, 20)


def test_r35_a_checkpoint_that_is_pruned_before_its_weights_are_read_is_replaced(tmp_path: Path) -> None:
    model = save_run(tmp_path / "run")
    source = RunSource(tmp_path / "run")
    texts = dict(source.checkpoint.texts)
    Store(tmp_path / "run" / "checkpoints", keep_last=1, keep_best=0).save(
        Snapshot(20, {"model": model.weights()}, {}, texts)
    )
    assert not source.checkpoint.path.exists()
    source.model()
    assert source.checkpoint.step == 20


@pytest.mark.full
def test_r35_full(tmp_path: Path) -> None:
    trial(tmp_path, 200)
