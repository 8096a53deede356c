"""Execution: worker processes that train runs, executors that start them, and the ledger of what is done."""

from heddle.comparison.execution.executor import EXECUTORS, Executor, Group, Limit, remove_checkpoints
from heddle.comparison.execution.ledger import COLUMNS, RESULTS, RUNS, Ledger, Result, rows_of, write_csv
from heddle.comparison.execution.logs import LOGS, keep_log
from heddle.comparison.execution.pilot_worker import StepSpeed, measure_in_waves
from heddle.comparison.execution.training_slots import TrainingSlots
from heddle.comparison.execution.worker import Job
