"""The executor of a Ray cluster (Moritz et al. 2018): a task for the runs of each variant.

A task trains its runs in a process of its own, as the local executor does, on the machine that Ray chooses. All
machines must see the folder of the comparison and its data under the same path.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from heddle.comparison.execution.executor import (
    TRIES,
    Executor,
    Group,
    Limit,
    OnProgress,
    OnResult,
    lost,
    remove_checkpoints,
)
from heddle.comparison.execution.ledger import Result
from heddle.comparison.execution.local import LocalExecutor
from heddle.comparison.execution.worker import RESULT, Job
from heddle.core import MissingExtra, first_line
from heddle.core.system import write_text

PAUSE = 1.0  # seconds between two looks


@dataclass
class RayExecutor(Executor):
    """Tasks of a Ray cluster; one whose worker dies is repeated once, and goes on where its runs were saved."""

    processes: int = 1

    def run(self, groups: Sequence[Group], limit: Limit, on_result: OnResult, on_progress: OnProgress) -> None:
        ray = _ray()
        if not ray.is_initialized():
            ray.init(log_to_driver=False, include_dashboard=False)
        gpus = min(1.0, ray.cluster_resources().get("GPU", 0.0)) and 1.0 / self.processes
        remote = ray.remote(max_retries=TRIES - 1, num_cpus=1, num_gpus=gpus)(_train_group)
        queued = {remote.remote(list(group)): group for group in groups}
        left = {job.names["key"]: job for group in groups for job in group}
        while queued and not limit.is_over():
            done, _ = ray.wait(list(queued), timeout=PAUSE)
            for task in done:
                _take_errors(ray, task, queued.pop(task), left, on_result)
            for key, job in list(left.items()):  # on the shared disk, as each ends
                if (result := job.result()) is not None:
                    del left[key]
                    on_result(result)
                    remove_checkpoints(job)
            on_progress([job for job in left.values() if job.run.exists()], len(left))
        for task in queued:
            ray.cancel(task)


def _take_errors(ray: Any, task: Any, group: Group, left: dict[str, Job], on_result: OnResult) -> None:
    """Count the runs of a task as failed that it could not train."""
    try:
        ray.get(task)
        reason = "no result was written: do all machines share the folder?"
    except ray.exceptions.RayError as error:
        reason = first_line(error)
    for job in group:
        if job.names["key"] in left and job.result() is None:
            del left[job.names["key"]]
            on_result(lost(job, reason))


def _train_group(jobs: Group) -> None:
    """Train the runs of one variant on a machine of the cluster; results are written beside the jobs."""
    left = {job.names["key"]: job for job in jobs if job.result() is None}

    def on_result(result: Result) -> None:
        write_text(left[result.key].folder / RESULT, result.line())  # of one whose process died, there is none yet

    if left:
        LocalExecutor(1).run([list(left.values())], Limit(), on_result, lambda running, queued: None)


def _ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError:
        raise MissingExtra("ray", "cluster", "executor=ray") from None
    return ray
