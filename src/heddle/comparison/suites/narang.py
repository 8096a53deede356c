"""The suite `narang`: the 52 rows of Narang et al. (2021) at an equal budget, with the paper's figures beside them."""

import csv
from collections.abc import Mapping
from pathlib import Path

from heddle.comparison.suites.suite import BudgetConfig, Figure, Suite, Variant, edit_model, set_fields
from heddle.core.system import read_text
from heddle.models.narang import DEPTHS, VARIANTS
from heddle.recipes import RECIPES
from heddle.training import RunConfig

PAPER = Path(__file__).with_name("narang2021.csv")
VANILLA = "vanilla-transformer"
PAIRS, STEPS = 64, 1100
EARLY_RUNS = 5  # of the paper's early loss
NEVER = 1_000_000  # steps between two checkpoints: runs are short, and those that stop early are saved then


def narang() -> Suite:
    """The 52 rows of Narang et al. (2021), span corruption on your own text: for a GPU."""
    rows = {name: row for name, row in (VARIANTS | DEPTHS).items() if name != VANILLA}
    variants = tuple(Variant(name, edit_model(edit), note) for name, (edit, note) in rows.items())
    return Suite("narang", base(), variants, BudgetConfig(steps=STEPS), paper=paper(), base_name=VANILLA)


def base() -> RunConfig:
    """Return the base: 12 + 12 layers of width 384, as the paper's but for its size."""
    return set_fields(
        "name=narang",
        f"model=narang/{VANILLA}",
        "model.layers=12",
        "model.width=384",
        "model.heads=6",
        "model.hidden=1536",
        "tokenizer.vocab=8192",
        "rows.length=284",  # sources of 256 and targets of 58 tokens
        f"training.batch={PAIRS}",
        f"training.steps={STEPS}",
        "training.optimizer.learning_rate=1e-3",
        "training.optimizer.weight_decay=0",
        "training.schedule.warmup=100",
        "training.schedule.floor=0",
        "validation_rows=1024",
        f"every.save={NEVER}",
        "objective.z_loss=1e-4",
    )(RECIPES["t5"]())


def paper() -> Mapping[str, Mapping[str, Figure]]:
    """Return the losses of the paper's table: after all steps, and after an eighth of them over five runs."""
    rows = list(csv.DictReader(read_text(PAPER).splitlines()))
    early = {r["slug"]: Figure(float(r["early_loss"]), float(r["early_loss_std"]), EARLY_RUNS) for r in rows}
    return {"final loss": {r["slug"]: Figure(float(r["final_loss"])) for r in rows}, "early loss": early}
