"""heddle convert: convert a model between formats."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from heddle.cli.options import Best
from heddle.cli.terminal import print_message, print_report


class ModelFormat(StrEnum):
    """The format to write."""

    HF = "hf"
    HEDDLE = "heddle"
    PEFT = "peft"


def convert(  # noqa: PLR0913 - the options are the contract
    source: Annotated[
        str,
        typer.Argument(metavar="SRC", help="A run, a Hugging Face folder, a GGUF file, an adapter or package:NAME."),
    ],
    target: Annotated[Path, typer.Argument(metavar="DST", help="A new folder.")],
    to: Annotated[
        ModelFormat | None,
        typer.Option(
            "--to", help="Target format. Default: hf for a run, heddle for anything else. peft: only the adapters."
        ),
    ] = None,
    family: Annotated[
        str | None, typer.Option(metavar="NAME", help="The Hugging Face model family, if several fit.")
    ] = None,
    dtype: Annotated[
        str, typer.Option(metavar="DTYPE", help="Data type of the weights: float32, bfloat16 or float16.")
    ] = "float32",
    licence: Annotated[
        str, typer.Option(metavar="NAME", help="Licence for the model card, such as apache-2.0.")
    ] = "other",
    unpickle: Annotated[
        bool,
        typer.Option(
            "--unpickle", help="Convert pickled weights (.bin) of SRC to safetensors, without running any code."
        ),
    ] = False,
    best: Best = False,
) -> int:
    """Convert a model: weights, tokenizer, chat template, generation config and model card."""
    from heddle.checkpoints import find_source, to_adapter, to_hugging_face, to_run
    from heddle.checkpoints.formats import unpickle_folder
    from heddle.checkpoints.hf import check_family, refuse_nonempty
    from heddle.core import UsageError
    from heddle.core.system import choose_hardware

    refuse_nonempty(target)  # before a large model is read
    if unpickle:
        if to is not None or family is not None or dtype != "float32":
            raise UsageError("--unpickle keeps the format; leave out --to, --family and --dtype")
        names = unpickle_folder(Path(source), target)
        print_message(f"{target}: a Hugging Face folder of {len(names)} tensors, no code was run")
        return 0
    hardware = choose_hardware("cpu", dtype)
    check_family(family)
    found = find_source(source, best=best)
    print_report(f"{found.path}: {found.describe()}")
    if to is None:
        to = ModelFormat.HF if found.is_run else ModelFormat.HEDDLE
    model = found.model(hardware)
    if to is ModelFormat.PEFT:
        written = to_adapter(found, model, target, family=family)
        print_message(f"{target}: an adapter for PEFT, family {written}")
    elif to is ModelFormat.HEDDLE:
        to_run(found, model, target)
        print_message(f"{target}: a heddle run")
    else:
        written = to_hugging_face(found, model, target, family=family, licence=licence)
        print_message(f"{target}: a Hugging Face folder, family {written}")
    return 0
