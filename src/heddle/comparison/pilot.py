"""The pilot of a comparison: the speed of every variant, measured one at a time, in pilot.json."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from heddle.comparison.arms import PILOT, StepTimes
from heddle.comparison.execution import Job, Limit, StepSpeed, measure_in_waves
from heddle.comparison.plan import config_hash, own_code
from heddle.core import encode, replace
from heddle.core.system import parse_json, read_text, write_json
from heddle.training import RunConfig


def measure_speeds(
    configs: Mapping[str, RunConfig], folder: Path, processes: int, limit: Limit, report: Callable[[str], None]
) -> None:
    """Measure the variants that pilot.json does not have yet; it grows variant by variant."""
    path, known = folder / PILOT, StepTimes.read(folder)
    steps: dict[str, Any] = parse_json(read_text(path), str(path))["steps"] if path.exists() else {}
    jobs = {
        name: _job(replace(config, name="run"), folder, processes)
        for name, config in configs.items()
        if known.find(config) is None
    }

    def on_speed(name: str, speed: StepSpeed) -> None:
        steps[config_hash(configs[name])] = {"variant": name} | asdict(speed)
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        write_json(path, {"device": device, "torch": torch.__version__, "steps": steps})
        figures = f"{1000 * speed.seconds:.1f} ms a step, first step after {speed.first_seconds:.0f} s, "
        report(f"pilot: {name}: {speed.reason or f'{figures}{speed.peak_gib:.1f} GiB'}")

    measure_in_waves(jobs, processes, limit, on_speed)


def _job(config: Any, folder: Path, processes: int) -> Job:
    plain = encode(config)
    assert isinstance(plain, dict)
    place = (folder / "pilot" / config_hash(config)).resolve()
    return Job(place, plain, {"key": ""}, (*config.use, *own_code(config)), processes=processes)
