"""R6: SIGTERM and SIGINT at any instant, to one process or one of two: saved, left in time with the right code, resumed
to the same end."""

import random
import signal
from pathlib import Path

import pytest
from reliability.harness import Blow, Nursery, Outcome, differences, last_step, tiny, write_config, write_text

from heddle.core import replace
from heddle.data.rows import StreamRows
from heddle.models.presets import PresetConfig
from heddle.training import RunConfig

CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}
ALONE, TOGETHER, AT_ONCE = 5.0, 10.0, 1.0  # seconds from the signal to the end


def shell(code: int) -> int:
    """Return the code as a shell shows it; a process signalled before it trains dies by the signal itself."""
    return code if code >= 0 else 128 - code


def instants(which: signal.Signals, count: int, draw: random.Random) -> list[Blow]:
    """Spread signals over micro-batches (odd ones: in the middle of a step), validation, a save, and any moment."""
    places = (
        lambda: Blow("micro", 2 * draw.randint(1, 4) + 1, which),
        lambda: Blow("disk", draw.randint(1, 30), which),
        lambda: Blow("validate", draw.randint(1, 3), which),
        lambda: Blow("micro", 2 * draw.randint(1, 4), which),
        lambda: Blow("time", draw.uniform(0.1, 0.5), which),
    )
    return [places[i % len(places)]() for i in range(count)]


def newest(run: Path) -> int:
    return max((int(p.name[5:13]) for p in (run / "checkpoints").glob("step-*")), default=0)


def left_well(outcome: Outcome, run: Path, blow: Blow) -> float:
    """Check one signalled process; return the seconds it took to leave."""
    assert outcome.seconds is not None and outcome.seconds < ALONE, f"{blow}: {outcome.seconds} s"
    assert shell(outcome.code) == CODES[signal.Signals(blow.signal)], f"{blow}: {outcome.code} {outcome.said}"
    assert "Traceback" not in outcome.said
    if outcome.start is not None:
        assert newest(run) == last_step(run), f"{blow}: saved {newest(run)} of {last_step(run)} steps"
    return outcome.seconds


def trial(nest: Nursery, tmp_path: Path, config: Path, count: int) -> tuple[int, int, float]:
    """Signal runs until so many signals of each kind have been sent; return signals, runs and the slowest leave."""
    assert nest.one(tmp_path / "whole", str(config)).code == 0
    draw, sent, runs, slowest = random.Random(6), 0, 0, 0.0
    for which in CODES:
        waiting = instants(which, count, draw)
        while waiting:
            root, target = tmp_path / f"run-{runs}", str(config)
            run = root / "runs" / "tiny"
            while waiting:
                outcome = nest.one(root, target, waiting[0])
                if outcome.code == 0:  # the run was over first; the instant is for the next one
                    break
                slowest = max(slowest, left_well(outcome, run, waiting.pop(0)))
                sent, target = sent + 1, str(run)
            if outcome.code != 0:
                assert nest.one(root, target).code == 0
            found = differences(run, tmp_path / "whole" / "runs" / "tiny")
            assert not found, f"{root.name} differs in {found}"
            runs += 1
    return sent, runs, slowest


def twice(nest: Nursery, tmp_path: Path, config: Path) -> float:
    """Send a second SIGINT while a step takes long; return the seconds to the end."""
    root = tmp_path / "twice"
    outcome = nest.one(root, str(config), Blow("micro", 13, signal.SIGINT, again=0.2))
    assert outcome.code == 130 and outcome.seconds is not None and outcome.seconds < AT_ONCE
    assert "press Ctrl-C again to leave at once" in outcome.said
    assert "left at once: 1 steps since the last checkpoint are not saved" in outcome.said
    assert nest.one(root, str(root / "runs" / "tiny")).code == 0
    assert not differences(root / "runs" / "tiny", tmp_path / "whole" / "runs" / "tiny")
    return outcome.seconds


def pairs(nest: Nursery, tmp_path: Path, config: Path, blows: list[Blow]) -> float:
    """Signal one of two processes; both must save once and leave with the same code."""
    whole = tmp_path / f"both-{config.stem}"
    done = nest.run(whole, str(config), world=2)
    assert [one.code for one in done] == [0, 0], done
    slowest = 0.0
    for number, blow in enumerate(blows):
        root = tmp_path / f"both-{config.stem}-{number}"
        left = nest.run(root, str(config), blow=blow, world=2)
        assert {one.code for one in left} == {CODES[signal.Signals(blow.signal)]}, left
        seconds = max(one.seconds for one in left if one.seconds is not None)
        assert seconds < TOGETHER
        run = root / "runs" / "tiny"
        assert newest(run) == last_step(run) < 12
        assert [one.code for one in nest.run(root, str(run), world=2)] == [0, 0]
        found = differences(run, whole / "runs" / "tiny")
        assert not found, f"{blow} leaves a difference in {found}"
        assert [p.name for p in sorted((root / "runs").iterdir())] == [".data", "tiny"], "one folder for both"
        slowest = max(slowest, seconds)
    return slowest


def streams(text: Path) -> RunConfig:
    """Return a run whose processes each carry the state of their own lanes."""
    model = PresetConfig(name="lstm_lm", width=16, layers=1, dropout=0.1)
    rows = StreamRows(length=8, lanes=4)
    return replace(tiny(text, training__steps=12, training__micro_batch=1), model=model, rows=rows)


def check(nest: Nursery, tmp_path: Path, count: int, blows: list[Blow]) -> None:
    text = write_text(tmp_path / "text.txt")
    config = write_config(tmp_path / "tiny.yaml", tiny(text))
    shorter = write_config(tmp_path / "shorter.yaml", tiny(text, training__steps=12))
    carrying = write_config(tmp_path / "carrying.yaml", streams(text))
    sent, runs, slowest = trial(nest, tmp_path, config, count)
    second = twice(nest, tmp_path, config)
    both = max(pairs(nest, tmp_path, shorter, blows), pairs(nest, tmp_path, carrying, blows[:1]))
    print(
        f"R6: {sent}/{sent} signals saved and left in at most {slowest:.1f} s, one of two ranks {both:.1f} s, "
        f"second SIGINT {second:.2f} s; {runs}/{runs} runs equal in every bit"
    )
    assert sent == 2 * count


def test_r06_a_signal_saves_and_leaves(nest: Nursery, tmp_path: Path) -> None:
    check(nest, tmp_path, 3, [Blow("micro", 4, signal.SIGTERM, rank=1)])


@pytest.mark.full
def test_r06_full(nest: Nursery, tmp_path: Path) -> None:
    blows = [Blow("micro", n, which, rank=rank) for n, rank in ((4, 0), (7, 1)) for which in CODES]
    check(nest, tmp_path, 20, blows)
