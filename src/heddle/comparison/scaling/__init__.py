"""Scaling: laws of loss over size and tokens from one's own runs, with predictions that are made before their test."""

from heddle.comparison.scaling.cells import GRID, LARGER, Cell, CellRun, Grid, Profile, Text, make_grid
from heddle.comparison.scaling.laws import (
    ArchitectureLaw,
    Best,
    Point,
    Predicted,
    Unit,
    best_row,
    fit_architecture,
    predict,
)
from heddle.comparison.scaling.prediction import GRADE, PREDICTION, read_grade, read_prediction
from heddle.comparison.scaling.run import (
    LAWS,
    Scaled,
    describe_study,
    load_study,
    predict_larger,
    run_study,
    train_larger,
)
from heddle.comparison.scaling.study import Architecture, LargerConfig, ScaleConfig, Study, choose_study, parse_words
