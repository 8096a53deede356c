"""Pretrained tokenizers: the tokenizer in a file, a folder of tokenizer files, or a model, with its chat template."""

from pathlib import Path

from heddle.checkpoints.formats import is_gguf
from heddle.checkpoints.hf import infer_special_tokens, is_adapter, is_hf_folder
from heddle.checkpoints.source import PACKAGE, find_source
from heddle.checkpoints.store import CHECKPOINTS, MANIFEST
from heddle.core import ConfigError, UsageError
from heddle.text.chat import load_template
from heddle.text.formats import read_tokenizer
from heddle.text.tokenizers import TOKENIZER, Tokenizer, load_tokenizer


def open_tokenizer(name: str) -> tuple[Tokenizer, str | None]:
    """Return the tokenizer of a file that Heddle wrote, of a folder of tokenizer files, or of a model.

    The second is the chat template that belongs to it, if there is one.
    """
    path = Path(name).expanduser()
    if path.is_file() and not is_gguf(path):
        return _of_file(path)
    if path.is_dir() and not _holds_model(path):
        return _of_folder(path)
    if not path.exists() and path.suffix == ".json":
        raise UsageError(f"{name}: no such file")
    source = find_source(name if name.startswith(PACKAGE) else path)
    found = source.tokenizer()
    if found is None:
        raise UsageError(f"{name}: has no tokenizer files")
    return found, source.template()


def _holds_model(path: Path) -> bool:
    run = (path / CHECKPOINTS).exists() or (path / MANIFEST).exists()
    return run or is_adapter(path) or is_hf_folder(path) or any(path.glob("*.gguf"))


def _of_file(path: Path) -> tuple[Tokenizer, str | None]:
    """Return the tokenizer of a file: one of Heddle, or the tokenizer.json of another library's folder."""
    try:
        return load_tokenizer(path), None
    except ConfigError:
        raise UsageError(f"{path}: not a tokenizer: it is not valid JSON") from None
    except UsageError as error:
        if path.name != TOKENIZER:
            raise
        try:
            return open_tokenizer(str(path.parent)) if _holds_model(path.parent) else _imported(path.parent)
        except UsageError:
            raise error from None


def _of_folder(path: Path) -> tuple[Tokenizer, str | None]:
    """Return the tokenizer of a folder without a model: Heddle's own, or of another library."""
    if not (path / TOKENIZER).is_file():
        return _imported(path)
    try:
        return load_tokenizer(path / TOKENIZER), load_template(path)
    except UsageError as error:
        try:
            return _imported(path)
        except UsageError:
            raise error from None


def _imported(path: Path) -> tuple[Tokenizer, str | None]:
    imported = read_tokenizer(path)
    special_tokens = None if imported is None else infer_special_tokens(imported, {}, {})
    if imported is None:
        raise UsageError(f"{path}: has no tokenizer files")
    if special_tokens is None:
        raise UsageError(f"{path}: its tokenizer files name no token that ends a text (eos_token)")
    return Tokenizer(imported.pipeline, special_tokens, imported.target), imported.template
