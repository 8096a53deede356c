"""Export a tokenizer: files from which `AutoTokenizer` builds one that encodes and decodes in the same way."""

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

    `sequence` is the template around a text, by default the one for language models and encoders; `limit` is the
    longest text in tokens; `segments`: the model takes token_type_ids. In transformers, text that spells a special
    token becomes one; in Heddle it never does.
    """
    special, names = tokenizer.special_tokens, tokenizer.names()
    around = special.text if sequence is None else sequence
    between = special.between or around.after if special.mask is None else special.separator  # a mask: an encoder's
    post_processor = _post_processor(around, names, between)
    files = {
        folder / TOKENIZER: tokenizer.to_json() | {"post_processor": post_processor},
        folder / TOKENIZER_CONFIG: _config(special, names, limit, segments) | _unknown(tokenizer, names),
    }
    for path, data in files.items():
        write_json(path, data)
    if template is None:
        return list(files)
    (folder / TEMPLATE).write_text(template, encoding="utf-8", newline="\n")
    return [*files, folder / TEMPLATE]


def _config(special: SpecialTokens, names: Sequence[str | None], limit: int | None, segments: bool) -> dict[str, Any]:
    """Return the tokenizer's config under Hugging Face's keys."""
    pad = special.end if special.pad is None else special.pad  # Heddle needs no padding, transformers does
    begins = special.begin != special.end or not special.target or special.begin in special.text.before
    ids: dict[str, int | None] = {"bos_token": special.begin if begins else None, "eos_token": special.end}
    ids |= {"pad_token": pad, "mask_token": special.mask}
    if special.mask is not None and special.text.before and special.text.after:  # an encoder
        ids |= {"cls_token": special.text.before[0], "sep_token": special.text.after[-1]}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", *(["token_type_ids"] if segments else []), "attention_mask"],
        **{key: names[id] for key, id in ids.items() if id is not None},
        **({} if limit is None else {"model_max_length": limit}),
    }


def _unknown(tokenizer: Tokenizer, names: Sequence[str | None]) -> dict[str, Any]:
    """Return the unknown token, if it is special: transformers leaves special tokens out of texts."""
    named = tokenizer.special_tokens.unknown
    unknown = tokenizer.unknown if named is None else named
    name = None if unknown is None else names[unknown]
    return {"unk_token": name} if name in tokenizer.special else {}


def _post_processor(
    sequence: SequenceTemplate, names: Sequence[str | None], between: tuple[int, ...]
) -> Mapping[str, Any] | None:
    """Return the library's post-processor for a sequence template, and what parts two texts."""
    if not sequence.before and not sequence.after:
        return None
    named = {id: names[id] for id in (*sequence.before, *sequence.after, *between)}

    def steps(ids: Sequence[int], type_id: int = 0) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": named[id], "type_id": type_id}} for id in ids]

    first, second = ({"Sequence": {"id": text, "type_id": type_id}} for text, type_id in (("A", 0), ("B", 1)))
    single = [*steps(sequence.before), first, *steps(sequence.after)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*steps(sequence.before), first, *steps(between), second, *steps(sequence.after, 1)],
        "special_tokens": {name: {"id": name, "ids": [id], "tokens": [name]} for id, name in named.items()},
    }
