"""Comparison: many variants at an equal budget, with seeds, statistics and a verdict; scaling laws."""

from heddle.comparison import execution, statistics, suites
from heddle.comparison.compare import Options, Standing, Watcher, load_comparison, run_suite
from heddle.comparison.verdicts import ArmVerdicts, Compared
