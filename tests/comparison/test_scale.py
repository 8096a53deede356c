"""Scaling studies: the grid, the search for rates, laws that are recovered, predictions that cannot be replaced."""

import dataclasses
import json
import math
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import heddle as library
from heddle.cli.main import main
from heddle.comparison import scaling
from heddle.comparison.execution import Result
from heddle.comparison.plan import Hashes
from heddle.comparison.scaling import CellRun, Grid, Text, Unit, choose_study, fit_architecture, make_grid, predict
from heddle.comparison.scaling.prediction import Larger, check_before_test, larger_cell, write_grade, write_prediction
from heddle.comparison.scaling.rates import RateRule, find_rule, search_runs
from heddle.comparison.statistics import CostLaw, ScalingLaw, optimum_at, parabola_bottom
from heddle.core import DamageError, UsageError, fields_of, replace
from heddle.models import build_meta, count_parameters, training_flops

TRUE = ScalingLaw(E=0.9, A=40.0, B=220.0, alpha=0.33, beta=0.38)
HASHES = Hashes("data", "valid", "tokens")
BUDGETS = [3e13, 1e14, 3e14, 1e15, 3e15]
GUTENBERG = Text(HASHES, 257, 150_000_000)
NOISE = 0.002


def study_of(*words: str, **settings: Any) -> scaling.Study:
    """Return a study of byte models."""
    given = {"tokenizer": "byte", "rows.length": 256, "training.batch": 64, "draws": 60} | settings
    return choose_study(words or ("first",), given.items())


def grid_of(text: Text = GUTENBERG, *words: str, **settings: Any) -> Grid:
    """Return its grid on a text of that size, without reading any."""
    study = study_of(*words, **settings)
    return make_grid(study, text, study.first)


def outcome(one: CellRun, loss: float) -> Result:
    """Return the result of a run with this loss."""
    run = one.run
    return Result(
        suite="scale", variant=run.variant, config_hash=run.config_hash, diff="", seed=run.seed, arm=run.arm,
        data_hash="data", valid_hash="valid", tokenizer_hash="tokens", params=one.cell.parameters, active_params=0,
        flops_token=one.cell.flops_token, steps=one.cell.steps, tokens=one.cell.tokens, learning_rate=1.0,
        optimizer="muon", gpu_s=None, tokens_s=None, peak_gib=0.0, loss_valid=loss, loss_test=loss, status="done",
        guard_skips=0, commit="", device="", torch="", bits_per_byte=loss / math.log(2), key=one.key,
    )  # fmt: skip


def simulated(grid: Grid, law: ScalingLaw = TRUE, noise: float = NOISE, seed: int = 0) -> dict[str, Result]:
    """Return the results of all runs under a law in bits per byte; the recipe's rate is the best one."""
    draw, results = np.random.default_rng(seed), dict[str, Result]()
    (profile,) = grid.profiles
    for cell in profile.cells:
        for run in grid.runs(cell, scaling.GRID, range(2 if cell in profile.repeated else 1), 1.0):
            bits = float(law.loss(cell.parameters, cell.tokens)) * math.exp(draw.normal(0, noise))
            results[run.key] = outcome(run, bits * math.log(2))
    return results


def runs_of(grid: Grid) -> list[CellRun]:
    """Return the runs of the grid at the recipe's rate."""
    (profile,) = grid.profiles
    return [
        run
        for cell in profile.cells
        for run in grid.runs(cell, scaling.GRID, range(2 if cell in profile.repeated else 1), 1.0)
    ]


LARGER = {"larger.parameters": 40e6, "larger.tokens": 149e6}


@cache
def books(**settings: Any) -> Grid:
    """Return the grid of five budgets on a text as long as the books of Project Gutenberg."""
    return grid_of(budgets=BUDGETS, **settings)


@cache
def law_of(seed: int = 0) -> scaling.ArchitectureLaw:
    """Return the law of simulated runs of that grid."""
    grid = books(rule="fixed", **LARGER)
    return fit_architecture(grid, grid.profiles[0], runs_of(grid), simulated(grid, seed=seed), "")


@pytest.fixture(scope="module")
def large() -> Grid:
    """Return that grid at the recipe's rates."""
    return books(rule="fixed", **LARGER)


def with_larger_run(**settings: float) -> Grid:
    """Return that grid with another larger run."""
    grid = books(rule="fixed", **LARGER)
    scale = replace(grid.study.scale, larger=scaling.LargerConfig(**settings))
    return dataclasses.replace(grid, study=dataclasses.replace(grid.study, scale=scale))


# --- the grid ---------------------------------------------------------------------------------------------------------


def test_a_grid_spends_each_budget_on_sizes_around_its_middle(large: Grid) -> None:
    (profile,) = large.profiles
    assert profile.budgets == BUDGETS and 24 <= len(profile.cells) <= 30
    for cell in profile.cells:
        assert cell.flops == pytest.approx(cell.budget, rel=0.03)
        assert 0.15 < cell.parameters / math.sqrt(cell.budget / 60) < 6
        assert cell.tokens <= GUTENBERG.tokens
    at_several = [cell.shape for cell in profile.cells]
    assert len(set(at_several)) < 0.6 * len(at_several)  # sizes come back at other budgets
    assert any("more than the 150,000,000 of one epoch" in line for line in profile.left_out)


def test_flops_and_both_counts_of_parameters_are_those_of_the_model(large: Grid) -> None:
    cell = large.profiles[0].middle
    model = build_meta(cell.base.model)
    assert cell.parameters == count_parameters(model)
    assert cell.flops_token == training_flops(model, 256)
    assert cell.parameters - cell.stack_parameters == 257 * cell.shape.width  # a tied table
    assert cell.flops_token != 6 * cell.parameters  # attention and head are in


def test_every_run_warms_up_for_at_most_a_twentieth_and_reads_its_text_once(large: Grid) -> None:
    for run in runs_of(large):
        training = run.run.config.training
        assert fields_of(training.schedule)["warmup"] <= 0.05 * training.steps
        assert training.steps * training.batch * 256 == run.cell.tokens <= GUTENBERG.tokens


def test_the_middle_size_has_several_seeds_at_three_budgets(large: Grid) -> None:
    repeated = large.profiles[0].repeated
    assert [cell.budget for cell in repeated] == [BUDGETS[0], BUDGETS[2], BUDGETS[4]]
    assert len({run.key for run in runs_of(large)}) == len(large.profiles[0].cells) + 3


def test_architectures_share_text_tokenizer_and_rows() -> None:
    study = study_of("first", "lstm", "model:gru_lm", "norm:layer_norm", budgets=BUDGETS)
    assert [one.name for one in study.architectures] == ["first", "lstm", "gru_lm", "norm:layer_norm"]
    for one in study.architectures[1:]:
        for name in ("data", "tokenizer", "rows", "objective", "validation_rows"):
            assert fields_of(one.base)[name] == fields_of(study.first)[name]
    grid = make_grid(study, GUTENBERG, study.first)
    norms = str(grid.profiles[3].middle.base.model)
    assert "LayerNormConfig" in norms and "RMSNormConfig" not in norms
    assert {cell.shape.layers for cell in grid.profiles[1].cells} == {2}  # no residual: width alone grows


def test_another_preset_keeps_the_settings_of_the_model() -> None:
    study = choose_study(["first", "model:lstm_lm"], [("model.dropout", 0.25), ("seed", 3)])
    assert [fields_of(one.base.model)["dropout"] for one in study.architectures] == [0.25, 0.25]
    assert [one.base.seed for one in study.architectures] == [3, 3]
    with pytest.raises(UsageError, match=r"model:lstm_lm: model\.heads: want one of"):
        choose_study(["first", "model:lstm_lm"], [("model.heads", 2)])


# --- learning rates ---------------------------------------------------------------------------------------------------


def searched(grid: Grid, best: Callable[[int], float]) -> RateRule:
    """Return the rule of a search in which the best factor at a width is known."""
    results: dict[str, Result] = {}
    for _ in range(10):
        for run in search_runs(grid, grid.profiles[0], results):
            off = math.log(run.factor / best(run.cell.shape.width))
            results.setdefault(run.key, outcome(run, 1.0 + 0.02 * off**2))
    rule = find_rule(grid, grid.profiles[0], results)
    assert rule is not None
    return rule


def test_a_power_of_the_width_is_found_from_two_widths() -> None:
    grid = books()
    assert find_rule(grid, grid.profiles[0], {}) is None
    rule = searched(grid, lambda width: 1.3 * (width / 100) ** -0.4)
    assert rule.power == pytest.approx(-0.4, abs=1e-6)
    assert rule.at(400) == pytest.approx(1.3 * 4**-0.4, rel=0.01)


def test_a_best_rate_at_the_edge_is_followed_by_further_ones() -> None:
    grid = books()
    profile = grid.profiles[0]
    assert [run.factor for run in search_runs(grid, profile, {})] == [0.5, 1.0, 2.0] * 2
    rule = searched(grid, lambda width: 4.0)
    assert rule.at(profile.smallest.shape.width) == pytest.approx(4.0, rel=0.01)


def test_a_rate_never_rises_with_the_width_nor_falls_faster_than_by_mup() -> None:
    grid = books()
    assert searched(grid, lambda width: (width / 100) ** 0.3).power == 0.0
    steep = searched(grid, lambda width: (width / 100) ** -1.6)
    assert steep.power == -1.0 and "is taken as -1" in steep.basis
    mup = books(rule="width")
    rule = find_rule(mup, mup.profiles[0], {})
    assert rule is not None and rule.at(2 * rule.at_width) == 0.5 and search_runs(mup, mup.profiles[0], {}) == []


# --- the law ----------------------------------------------------------------------------------------------------------


def test_known_constants_and_a_larger_run_lie_inside_their_intervals(large: Grid) -> None:
    law = law_of()
    found = law.constants()
    for name in ("E", "A", "B", "alpha", "beta"):
        low, high = found[name][1]
        assert low <= vars(TRUE)[name] <= high, name
    assert found["exponent"][1][0] <= TRUE.exponent <= found["exponent"][1][1]
    expected = predict(law, 40e6, 149e6)
    truth = float(TRUE.loss(40e6, 149e6))
    assert expected.loss == pytest.approx(truth, rel=0.015)
    assert expected.band[0] <= expected.interval[0] <= truth <= expected.interval[1] <= expected.band[1]
    assert len(law.without) == 5 and law.missing == 0
    for one in law.best:
        best = optimum_at(TRUE, one.flops, law.cost)
        assert one.parameters[0] <= best.parameters <= one.parameters[1]


def test_the_best_size_counts_exact_flops() -> None:
    cost = CostLaw.fit([1e5, 1e6, 1e7], [7.0 * n**0.97 for n in (1e5, 1e6, 1e7)])
    assert (cost.factor, cost.power) == pytest.approx((7.0, 0.97))
    best = optimum_at(TRUE, 1e15, cost)
    sizes = best.parameters * np.geomspace(0.2, 5, 801)
    losses = [float(TRUE.loss(size, cost.tokens(size, 1e15))) for size in sizes]
    assert sizes[int(np.argmin(losses))] == pytest.approx(best.parameters, rel=0.01)
    assert parabola_bottom([1.0, 2.0, 4.0, 8.0], [3.0, 2.0, 2.0, 3.0]) == pytest.approx(math.sqrt(8))
    assert parabola_bottom([1.0, 2.0, 4.0], [3.0, 2.0, 1.0]) is None


def test_a_diverged_run_is_named_and_never_fitted(large: Grid) -> None:
    results, runs = simulated(large), runs_of(large)
    lost = dataclasses.replace(results[runs[0].key], status="diverged", loss_valid=None, loss_test=None, reason="nan")
    law = fit_architecture(large, large.profiles[0], runs, results | {runs[0].key: lost}, "")
    assert len(law.points) == len(runs) - 1 and "diverged: nan" in law.failed[0]


def test_losses_are_bits_per_byte_or_nats_where_bytes_are_hidden(large: Grid) -> None:
    one, two, *_ = simulated(large).values()
    assert Unit.of([one, two]).name == "bits per byte"
    assert Unit.of([one, two]).loss(one) == pytest.approx(one.loss / math.log(2))
    hidden = dataclasses.replace(two, bits_per_byte=(two.bits_per_byte or 0) + 0.1)
    assert Unit.of([one, hidden]).name == Unit.of([dataclasses.replace(one, bits_per_byte=None)]).name
    assert Unit.of([one, hidden]).name == "nats per target"
    tests = [dataclasses.replace(run, bits_per_byte_test=0.4 * run.loss) for run in (one, two)]
    assert Unit.of(tests).factor == pytest.approx(0.4), "the bytes are those of the test rows, whose loss it is"


# --- predictions ------------------------------------------------------------------------------------------------------


@pytest.fixture
def predicted(tmp_path: Path) -> tuple[Path, Grid, dict[str, Result], list[Larger]]:
    """Return a folder with a prediction, and what it was made from."""
    grid = books(rule="fixed", **LARGER)
    results, law = simulated(grid), law_of()
    cell = larger_cell(grid, law)
    larger = [Larger(law, tuple(grid.runs(cell, scaling.LARGER, range(2), 1.0)))]
    write_prediction(tmp_path, larger, results, Unit.of(list(results.values())), "heddle scale")
    return tmp_path, grid, results, larger


def with_larger(larger: list[Larger], results: dict[str, Result], factor: float) -> dict[str, Result]:
    """Return the results with larger runs whose loss is that of the law times a factor."""
    runs = larger[0].runs
    nats = math.log(2) * factor * float(TRUE.loss(runs[0].cell.parameters, runs[0].cell.tokens))
    return results | {run.key: outcome(run, nats) for run in runs}


def test_a_prediction_says_when_from_what_and_by_which_law(predicted: Any) -> None:
    folder, _, results, _ = predicted
    found = json.loads((folder / "prediction.json").read_text())
    assert found["runs"] == len(results) and len(found["runs_hash"]) == 64 and found["made"].startswith("20")
    (row,) = found["architectures"].values()
    assert row["parameters"] == pytest.approx(40e6, rel=0.1) and row["times_largest_budget"] == pytest.approx(
        12.5, rel=0.15
    )
    assert row["band"][0] <= row["interval"][0] < row["loss"] < row["interval"][1] <= row["band"][1]
    assert len(row["keys"]) == 2 and set(row["law"]) == {"E", "A", "B", "alpha", "beta"}


def test_a_prediction_is_graded_once(predicted: Any) -> None:
    folder, _, results, larger = predicted
    before = check_before_test(folder, larger, results)
    unit = Unit.of(list(results.values()))
    assert write_grade(folder, before, results, unit) is None  # nothing to grade yet
    grade = write_grade(folder, before, with_larger(larger, results, 1.0), unit)
    (row,) = grade["architectures"].values()
    assert abs(row["error"]) < 0.015 and row["inside_band"]
    again = write_grade(folder, before, with_larger(larger, results, 1.2), unit)  # a better or worse second try
    assert again == grade and json.loads((folder / "grade.json").read_text()) == grade


def test_a_failed_larger_run_is_not_graded_but_trained_again(predicted: Any) -> None:
    folder, _, results, larger = predicted
    unit, before = Unit.of(list(results.values())), check_before_test(folder, larger, results)
    done = with_larger(larger, results, 1.0)
    key = larger[0].runs[0].key
    failed = dataclasses.replace(done[key], status="failed", loss_test=None, loss_valid=None)
    assert write_grade(folder, before, done | {key: failed}, unit) is None
    assert write_grade(folder, before, done, unit) is not None


def test_a_best_size_that_is_nowhere_is_said(large: Grid) -> None:
    flat = ScalingLaw(E=1.0, A=50.0, B=1e-8, alpha=0.05, beta=0.011)
    assert not optimum_at(flat, 1e15, CostLaw(6.0, 1.0)).is_inside
    assert optimum_at(TRUE, 1e15, CostLaw(6.0, 1.0)).is_inside


def test_a_miss_stays_in_the_record(predicted: Any) -> None:
    folder, _, results, larger = predicted
    grade = write_grade(
        folder,
        check_before_test(folder, larger, results),
        with_larger(larger, results, 1.2),
        Unit.of(list(results.values())),
    )
    (row,) = grade["architectures"].values()
    assert (
        row["error"] == pytest.approx(1 / 1.2 - 1, abs=0.01) and not row["inside_band"] and not row["inside_interval"]
    )


def test_a_tested_prediction_cannot_be_replaced(predicted: Any) -> None:
    folder, grid, results, larger = predicted
    unit = Unit.of(list(results.values()))
    same = write_prediction(folder, larger, results, unit, "again")
    assert same["command"] == "heddle scale"  # the one that is there
    other = simulated(grid, seed=1)
    newer = [Larger(law_of(seed=1), larger[0].runs)]
    with pytest.raises(UsageError, match="want the runs that it was made from, and its larger runs, got others"):
        check_before_test(folder, newer, other)
    replaced = write_prediction(folder, newer, other, unit, "newer")  # untested: replaced, and the old one kept
    assert (folder / f"prediction-{same['checksum'][:12]}.json").exists() and replaced["replaces"] == same["checksum"]
    with pytest.raises(UsageError, match="is being tested: its larger run has begun"):
        write_prediction(folder, larger, with_larger(larger, results, 1.0), unit, "")
    write_grade(folder, replaced, with_larger(larger, other, 1.0), unit)
    with pytest.raises(UsageError, match="is graded; a new prediction needs a new folder"):
        write_prediction(folder, larger, results, unit, "")


@pytest.mark.parametrize("name", ["prediction.json", "grade.json"])
def test_an_edited_prediction_or_grade_is_refused(predicted: Any, name: str) -> None:
    folder, _, results, larger = predicted
    done, unit = with_larger(larger, results, 1.2), Unit.of(list(results.values()))
    write_grade(folder, check_before_test(folder, larger, results), done, unit)
    path = folder / name
    path.write_text(path.read_text().replace('"unit": "', '"unit": "milli'))
    with pytest.raises(DamageError, match="changed since it was written"):
        scaling.read_grade(folder)


# --- refusals ---------------------------------------------------------------------------------------------------------

BAD: dict[str, tuple[list[str], str]] = {
    "unknown recipe": (["frist"], r"no recipe or config file is called 'frist'; did you mean 'first'"),
    "missing file": (["mine.yaml"], r"mine\.yaml: no such file"),
    "unknown preset": (["first", "model:lstm_ml"], r"no preset is called 'lstm_ml'.*lstm_lm"),
    "unknown part": (["first", "norm:nosuch"], r"swap\.norm\.kind: want .* got 'nosuch'"),
    "a change of nothing": (["norm:none"], r"want a recipe or a config file first, which norm:none changes"),
    "the same twice": (["first", "first"], r"want at least one architecture, each once, got first, first"),
    "two budgets": (["first", "budgets=1e11,1e12"], r"budgets: want at least 3, each once, got '1e\+11, 1e\+12'"),
    "a budget twice": (["first", "budgets=1e11,1e12,1e12"], r"budgets: want at least 3, each once"),
    "budget of a word": (["first", "budgets=much,1,2"], r"budgets\.0: want a number, got 'much'"),
    "budget below zero": (["first", "budgets=-1,1e11,1e12"], r"budgets: want numbers above 0, got '-1'"),
    "budget without end": (["first", "budgets=inf,1e11,1e12"], r"budgets\.0: want a number, got inf"),
    "tiny budgets": (
        ["first", "budgets=1,2,3"],
        r"want at least 3 sizes that can be trained at 1 FLOPs, got 0 \(1x8: 0 steps .*\); budgets=\S+ would fit",
    ),
    "two sizes": (["first", "sizes=1,2"], r"sizes: want at least 3, each once, got '1, 2'"),
    "no seeds": (["first", "seeds=0"], r"seeds: want at least 1, got 0"),
    "two rates": (
        ["first", "rates=1,2"],
        r"rates: want at least 3, 1 among them, to find the best; or rule=fixed, got",
    ),
    "unknown rule": (["first", "rule=linear"], r"rule: want one of power, width, fixed, got 'linear'"),
    "long warm-up": (["first", "warmup=0.2"], r"warmup: want 0 to 0\.05, of the steps, got 0\.2"),
    "few draws": (["first", "draws=3"], r"draws: want at least 20, got 3"),
    "unknown setting": (["first", "larger.size=3"], r"larger\.size: .*(parameters|unknown|no such)"),
    "unknown key": (["first", "training.stps=3"], r"training\.stps.*steps"),
    "constant rate": (
        ["first", "training.schedule.kind=constant"],
        r"training\.schedule: want one that decays.*constant",
    ),
    "pairs": (["translate"], r"translate: rows\.kind: want rows of plain text.*got pairs"),
    "fine-tuning": (["finetune"], r"finetune: want one corpus and new weights, got mix, init or adapters"),
    "unknown executor": (["first", "--executor", "slurm"], r"executor: want one of local, ray, got 'slurm'"),
    "two modes": (["first", "--predict", "--test"], r"want one of --plan, .* got --predict and --test"),
    "a folder of nothing": (["."], r"not the folder of a comparison|has no command\.txt"),
    "nothing to report": (["first", "--report"], r"holds no runs of a study of scaling yet"),
    "layers that cannot change": (["first", "model:window_lm", "depth=1"], r"depth: want 0 for a model whose layers"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_studies_are_refused_in_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words, want = BAD[name]
    assert main(["scale", *words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and re.search(want, error), error
    assert not list(tmp_path.glob("scaling/*/runs*"))


def test_in_python_wrong_words_are_refused() -> None:
    with pytest.raises(UsageError, match="action: want one of fit, predict, test, got 'train'"):
        library.scale("first", action="train")
    with pytest.raises(UsageError, match="overrides: want none beside a Study"):
        library.scale(study_of(), overrides={"seed": 1})


def test_a_text_too_short_for_a_budget_is_refused() -> None:
    with pytest.raises(
        UsageError,
        match=r"first: budgets: want at least 3 sizes.*tokens are more than the 100,000 of one epoch.*no bud",
    ):
        grid_of(Text(HASHES, 257, 100_000), budgets=BUDGETS, rule="fixed")
    with pytest.raises(UsageError, match=r"budgets=\S+ would fit") as refused:
        grid_of(Text(HASHES, 257, 2_000_000), budgets=BUDGETS, rule="fixed")
    (found,) = re.findall(r"budgets=(\S+) would", str(refused.value))
    fitting = [float(one) for one in found.split(",")]
    assert grid_of(Text(HASHES, 257, 2_000_000), budgets=fitting, rule="fixed").profiles[0].budgets == fitting


def test_a_larger_run_beyond_one_epoch_or_below_the_grid_is_refused() -> None:
    for settings, want in (
        ({"tokens": 151e6, "parameters": 40e6}, "want at most the 150,000,000 tokens of one epoch"),
        ({"tokens": 1e6, "parameters": 1e6}, "want more FLOPs than the largest budget"),
    ):
        with pytest.raises(UsageError, match=want):
            larger_cell(with_larger_run(**settings), law_of())
