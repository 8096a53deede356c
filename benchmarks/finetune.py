"""Fine-tune a chat model with LoRA on 200 dialogues, and hold what comes out against what `peft` computes.

    OMP_NUM_THREADS=2 python benchmarks/finetune.py MODEL DIALOGUES FOLDER [--rows N] [--held-out N] [key=value ...]

MODEL is a GGUF file or a Hugging Face folder. DIALOGUES holds dailydialog.dev.txt.gz, whose first rows are learnt from,
and dailydialog.test.txt.gz, whose first rows are held out. FOLDER gets the rows, the run and the adapter. Three things
are checked: the held-out loss of the answers falls by 0.3 nats, the model computes the same with its adapters merged,
and `peft` computes the same from the adapter that was written, over the base model as `transformers` reads it. The exit
code says whether all hold.
"""

import argparse
import gzip
import itertools
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from results import device
from torch import Tensor, nn

from heddle.checkpoints import find_source
from heddle.checkpoints.hf import save_adapter
from heddle.core import encode
from heddle.core.system import parse_overrides, write_json
from heddle.models.networks import LanguageModel
from heddle.models.surgery import merge_adapters
from heddle.recipes import RECIPES
from heddle.training import RunConfig, RunEnvironment, apply_overrides, set_up
from heddle.training.callbacks import Validate
from heddle.training.loop import Trainer

FALL = 0.3  # nats that the held-out loss must fall by
MERGED = 1e-4  # how far logits may be apart with adapters merged
THEIRS = 2e-5  # how far logits may be from those of peft, over the spread of the latter
END_OF_TURN = "__eou__"


def dialogues(path: Path, count: int) -> Iterator[list[str]]:
    """Yield dialogues as turns; what follows the last one's end is labels."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = ([natural(turn) for turn in line.split(END_OF_TURN)[:-1]] for line in file)
        yield from itertools.islice((row for row in rows if len(row) > 1), count)


def natural(text: str) -> str:
    """Undo the corpus's tokenization: no space before punctuation, none around apostrophes."""
    text = re.sub(r"\s+([.,?!;:%)\]])", r"\1", text.strip())
    return re.sub(r"\s*([’'])\s*(s|t|m|d|ll|re|ve)\b", r"\1\2", text)


def write_rows(data: Path, folder: Path, rows: int, held_out: int) -> None:
    """Write what is learnt from and what is held out as JSON lines."""
    for name, part, count in (("train", "dev", rows), ("valid", "test", held_out)):
        lines = [json.dumps({"dialog": turns}) for turns in dialogues(data / f"dailydialog.{part}.txt.gz", count)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def configured(model: str, folder: Path, words: list[str]) -> RunConfig:
    """Return the recipe `finetune` for these rows."""
    valid = {"kind": "file", "source": {"kind": "chat", "path": str(folder / "valid.jsonl")}}
    given = [
        f"init={model}",
        f"data={folder / 'train.jsonl'}",
        f"data.split={json.dumps(valid)}",
        "hardware.device=cpu",
    ]
    return apply_overrides(RECIPES["finetune"](), parse_overrides([*given, *words]))


def measured(trainer: Trainer) -> float:
    """Return the held-out loss as the model is now."""
    validate = next(c for c in trainer.callbacks if isinstance(c, Validate))
    step = trainer.take_step
    found = validate.held_out.measure(trainer.model, validate.objective, step.processes, trainer.signals)
    assert found is not None
    return found.loss


def trained(config: RunConfig, folder: Path) -> tuple[LanguageModel, dict[str, Any]]:
    """Train, and return the model in float32 with what happened."""
    trainer = set_up(config, RunEnvironment(folder / "runs" / config.name))
    before = measured(trainer)
    wall, cpu = time.perf_counter(), time.process_time()
    trainer.fit()
    seconds = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
    model = trainer.model
    assert isinstance(model, LanguageModel)
    learned, total = (sum(p.numel() for p in some) for some in (model.trainable().values(), model.parameters()))
    after = measured(trainer)
    model.compute = None
    found = {"steps": trainer.step, "learned": learned, "weights": total, "before": before, "after": after}
    return model.eval(), found | {"fall": before - after} | seconds


def theirs(model: str) -> nn.Module:
    """Return the base model as `transformers` reads it."""
    from transformers import AutoModelForCausalLM

    path = Path(model)
    where = {"gguf_file": path.name} if path.is_file() else {}
    folder = path.parent if path.is_file() else path
    found: nn.Module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **where)
    return found.eval()


@torch.no_grad()
def compared(model: LanguageModel, base: str, adapter: Path, ids: Tensor) -> dict[str, Any]:
    """Return how far logits are apart: merged and not, ours and theirs, with the adapter and without."""
    from peft import PeftModel

    plain = find_source(base).model()
    assert isinstance(plain, LanguageModel)
    together = merge_adapters(model).eval()
    assert isinstance(together, LanguageModel)
    ours, merged, bare = model.logits(ids), together.logits(ids), plain.eval().logits(ids)
    other = theirs(base)
    before = other(ids).logits
    with_adapter = PeftModel.from_pretrained(other, adapter).eval()(ids).logits
    spread = with_adapter.std()
    return {
        "merged": float((ours - merged).abs().max()),
        "merged_over_spread": float((ours - merged).abs().max() / ours.std()),
        "peft": float((ours - with_adapter).abs().max() / spread),
        "base": float((bare - before).abs().max() / before.std()),
        "moved": float((ours - bare).abs().max() / spread),
    }


def main() -> int:
    """Train, compare, print JSON; return 1 if anything does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("words", nargs="*", help="key=value for the run, such as training.steps=20")
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--held-out", type=int, default=50)
    given = parser.parse_intermixed_args()
    folder = given.folder
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(given.data, folder, given.rows, given.held_out)
    config = configured(given.model, folder, given.words)
    model, found = trained(config, folder)
    save_adapter(model, folder / "adapter", base=given.model)
    tokenizer = find_source(given.model).tokenizer()
    assert tokenizer is not None
    text = " ".join(turn for turns in dialogues(given.data / "dailydialog.test.txt.gz", 10) for turn in turns)
    found |= compared(model, given.model, folder / "adapter", torch.tensor([tokenizer.encode(text)[:256]]))
    found["holds"] = {
        "fall": found["fall"] >= FALL,
        "merged": found["merged"] <= MERGED,
        "peft": found["peft"] <= THEIRS,
    }
    line = {"rows": given.rows, "held_out": given.held_out, "device": device(), "dtype": config.hardware.dtype} | found
    write_json(folder / "config.json", encode(config))
    print(json.dumps(line))
    return 0 if all(found["holds"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
