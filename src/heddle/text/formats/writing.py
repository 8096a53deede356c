"""Writing a tokenizer for others: the files from which `AutoTokenizer` makes one that encodes and decodes as ours."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heddle.core import write_json
from heddle.text.chat import CONFIG, FILE
from heddle.text.formats.whole import FILE as WHOLE
from heddle.text.roles import Frame, Roles
from heddle.text.tokenizer import Tokenizer


def write_tokenizer(
    tokenizer: Tokenizer,
    folder: Path,
    *,
    frame: Frame | None = None,
    template: str | None = None,
    limit: int | None = None,
) -> list[Path]:
    """Write tokenizer.json, its config and the chat template into a folder; return the files.

    `frame` is what stands around a text there, by default around what a language model or an encoder reads; `limit` is
    how many tokens the model takes. Text that spells a control token becomes one there, though never here.
    """
    around = tokenizer.roles.text if frame is None else frame
    names = tokenizer.names()
    files = {
        folder / WHOLE: tokenizer.plain() | {"post_processor": _framing(around, names)},
        folder / CONFIG: _config(tokenizer.roles, names, limit),
    }
    for path, data in files.items():
        write_json(path, data)
    if template is None:
        return list(files)
    (folder / FILE).write_text(template, encoding="utf-8", newline="\n")
    return [*files, folder / FILE]


def _config(roles: Roles, names: Sequence[str | None], limit: int | None) -> dict[str, Any]:
    """Return the tokenizer's config in the words of the field."""
    ids = {"bos_token": roles.begin, "eos_token": roles.end, "pad_token": roles.pad, "mask_token": roles.mask}
    if roles.mask is not None and roles.text.before and roles.text.after:  # as an encoder reads
        ids |= {"cls_token": roles.text.before[0], "sep_token": roles.text.after[-1]}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        **{key: names[id] for key, id in ids.items() if id is not None},
        **({} if limit is None else {"model_max_length": limit}),
    }


def _framing(frame: Frame, names: Sequence[str | None]) -> Mapping[str, Any] | None:
    """Return the library's post-processor that puts a frame around a text."""
    if not frame.before and not frame.after:
        return None
    named = {id: names[id] for id in (*frame.before, *frame.after)}

    def steps(ids: Sequence[int], type_id: int = 0) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": named[id], "type_id": type_id}} for id in ids]

    first, second = ({"Sequence": {"id": text, "type_id": type_id}} for text, type_id in (("A", 0), ("B", 1)))
    single = [*steps(frame.before), first, *steps(frame.after)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, second, *steps(frame.after, 1)],
        "special_tokens": {name: {"id": name, "ids": [id], "tokens": [name]} for id, name in named.items()},
    }
