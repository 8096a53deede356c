"""Options of the commands that take a memory: a kNN language model in place of the model alone."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from heddle.lm import LM

Memory = Annotated[
    Path | None, typer.Option("--memory", metavar="FOLDER", help="Mix in the neighbours of a memory (kNN-LM).")
]
Weight = Annotated[
    float | None,
    typer.Option("--memory-weight", metavar="W", help="With --memory: weight of the neighbours. Default: 0.25."),
]
Count = Annotated[
    int | None, typer.Option("--memory-k", metavar="K", help="With --memory: number of neighbours. Default: 64.")
]
Temperature = Annotated[
    float | None,
    typer.Option(
        "--memory-temperature", metavar="T", help="With --memory: temperature of their distances. Default: by the keys."
    ),
]
Search = Annotated[
    str | None,
    typer.Option("--memory-search", metavar="KIND", help="With --memory: exact, or index (heddle memory index)."),
]


@dataclass(frozen=True)
class MemoryWords:
    """The options as they were typed."""

    folder: Path | None
    weight: float | None = None
    k: int | None = None
    temperature: float | None = None
    search: str | None = None

    @property
    def _options(self) -> dict[str, object]:
        return {"weight": self.weight, "k": self.k, "temperature": self.temperature, "search": self.search}

    def record(self) -> dict[str, object]:
        """Return the folder and the options that were given, as plain data; empty: no memory."""
        if self.folder is None:
            return {}
        given = {name: value for name, value in self._options.items() if value is not None}
        return {"folder": str(self.folder.absolute()), **given}

    def apply(self, lm: "LM") -> "LM":
        """Return the model with its memory, or as it is where none was given."""
        from heddle.core import UsageError

        options = self._options
        if self.folder is not None:
            return lm.with_memory(self.folder, **options)  # type: ignore[arg-type]
        for name, value in options.items():
            if value is not None:
                raise UsageError(f"--memory-{name} requires --memory")
        return lm
