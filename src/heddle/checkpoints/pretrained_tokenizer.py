"""Pretrained tokenizers: the tokenizer in a file, a folder of tokenizer files, or a model, with its chat template."""

from pathlib import Path

from heddle.checkpoints.formats import is_gguf
from heddle.checkpoints.hf import infer_special_tokens, is_adapter, is_hf_folder
from heddle.checkpoints.source import find_source
from heddle.checkpoints.store import CHECKPOINTS, CONFIG
from heddle.core import UsageError
from heddle.text.formats import read_tokenizer
from heddle.text.tokenizers import TOKENIZER, Tokenizer, load_tokenizer


def open_tokenizer(name: str) -> tuple[Tokenizer, str | None]:
    """Return the tokenizer of a file that Heddle wrote, of a folder of tokenizer files, or of a model.

    The second is the chat template of the model, if it has one.
    """
    path = Path(name).expanduser()
    if path.is_file() and not is_gguf(path):
        return load_tokenizer(path), None
    if path.is_dir() and not any((path / part).exists() for part in (CONFIG, CHECKPOINTS)) and not is_adapter(path):
        return _of_folder(path)
    if not path.exists() and (path.suffix == ".json" or path.is_absolute()):
        raise UsageError(f"{name}: no such file")
    source = find_source(name)
    found = source.tokenizer()
    if found is None:
        raise UsageError(f"{name}: has no tokenizer files")
    return found, source.template()


def _of_folder(path: Path) -> tuple[Tokenizer, str | None]:
    """Return the tokenizer of a folder without a model: Heddle's own, or of another library."""
    try:
        if (path / TOKENIZER).is_file() and not is_hf_folder(path):
            return load_tokenizer(path / TOKENIZER), None
    except UsageError as error:
        fault: UsageError | None = error
    else:
        fault = None
    imported = read_tokenizer(path)
    special_tokens = None if imported is None else infer_special_tokens(imported, {}, {})
    if imported is None or special_tokens is None:
        raise fault or UsageError(f"{path}: has no tokenizer files that tell the end of a text")
    return Tokenizer(imported.pipeline, special_tokens, imported.target), imported.template
