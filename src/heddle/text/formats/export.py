"""Writing a tokenizer for others: the files from which `AutoTokenizer` makes one that encodes and decodes as ours."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heddle.core.system import write_json
from heddle.text.chat import TEMPLATE
from heddle.text.tokenizers import TOKENIZER, TOKENIZER_CONFIG, SequenceTemplate, SpecialTokens, Tokenizer


def write_tokenizer(
    tokenizer: Tokenizer,
    folder: Path,
    *,
    sequence: SequenceTemplate | None = None,
    template: str | None = None,
    limit: int | None = None,
    segments: bool = False,
) -> list[Path]:
    """Write tokenizer.json, its config and the chat template into a folder; return the files.

    `frame` is what stands around a text there, by default around what a language model or an encoder reads; `limit` is
    how many tokens the model takes; `segments` says that it is told which of two texts a token is of. Text that spells
    a control token becomes one there, though never here.
    """
    template_used = tokenizer.special_tokens.text if sequence is None else sequence
    names = tokenizer.names()
    files = {
        folder / TOKENIZER: tokenizer.plain() | {"post_processor": _post_processor(template_used, names)},
        folder / TOKENIZER_CONFIG: _config(tokenizer.special_tokens, names, limit, segments)
        | _unknown(tokenizer, names),
    }
    for path, data in files.items():
        write_json(path, data)
    if template is None:
        return list(files)
    (folder / TEMPLATE).write_text(template, encoding="utf-8", newline="\n")
    return [*files, folder / TEMPLATE]


def _config(
    special_tokens: SpecialTokens, names: Sequence[str | None], limit: int | None, segments: bool
) -> dict[str, Any]:
    """Return the tokenizer's config in the words of the field."""
    pad = (
        special_tokens.end if special_tokens.pad is None else special_tokens.pad
    )  # ours have none, and rows must be filled with something there
    begins = (
        special_tokens.begin != special_tokens.end
        or not special_tokens.target
        or special_tokens.begin in special_tokens.text.before
    )
    ids: dict[str, int | None] = {
        "bos_token": special_tokens.begin if begins else None,
        "eos_token": special_tokens.end,
    }
    ids |= {"pad_token": pad, "mask_token": special_tokens.mask}
    if (
        special_tokens.mask is not None and special_tokens.text.before and special_tokens.text.after
    ):  # as an encoder reads
        ids |= {"cls_token": special_tokens.text.before[0], "sep_token": special_tokens.text.after[-1]}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", *(["token_type_ids"] if segments else []), "attention_mask"],
        **{key: names[id] for key, id in ids.items() if id is not None},
        **({} if limit is None else {"model_max_length": limit}),
    }


def _unknown(tokenizer: Tokenizer, names: Sequence[str | None]) -> dict[str, Any]:
    """Return the name of the unknown token, where it is a control token: such are left out of texts there."""
    name = None if tokenizer.unknown is None else names[tokenizer.unknown]
    return {"unk_token": name} if name in tokenizer.special else {}


def _post_processor(sequence: SequenceTemplate, names: Sequence[str | None]) -> Mapping[str, Any] | None:
    """Return the library's post-processor that puts a frame around a text."""
    if not sequence.before and not sequence.after:
        return None
    named = {id: names[id] for id in (*sequence.before, *sequence.after)}

    def steps(ids: Sequence[int], type_id: int = 0) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": named[id], "type_id": type_id}} for id in ids]

    first, second = ({"Sequence": {"id": text, "type_id": type_id}} for text, type_id in (("A", 0), ("B", 1)))
    single = [*steps(sequence.before), first, *steps(sequence.after)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, second, *steps(sequence.after, 1)],
        "special_tokens": {name: {"id": name, "ids": [id], "tokens": [name]} for id, name in named.items()},
    }
