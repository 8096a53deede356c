"""Comparison: many variants at an equal budget, with seeds, statistics and a verdict; scaling laws."""

from heddle.comparison import execution, statistics, suites
from heddle.comparison.compare import Options, Standing, Watcher, judge_suite, run_suite
from heddle.comparison.judge import Compared, Judged
from heddle.comparison.report import write_report
