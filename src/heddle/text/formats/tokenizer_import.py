"""Read the tokenizer of a Hugging Face folder: a pipeline with the special tokens that its configs name."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from heddle.core import DataError
from heddle.text.formats.bpe import read_byte_level, read_gpt_bpe
from heddle.text.formats.imported import (
    ImportedTokenizer,
    TokenizerSpec,
    probe_separator,
    probe_special_tokens,
    refuse_damaged,
)
from heddle.text.formats.marian import read_marian
from heddle.text.formats.sentencepiece_pipelines import read_sentencepiece
from heddle.text.formats.tokenizer_config import TokenizerSettings, read_settings
from heddle.text.formats.tokenizer_json import read_tokenizer_json
from heddle.text.formats.wordpiece import read_wordpiece
from heddle.text.tokenizers import pipeline_steps

CLEANED = [(f" {mark}", mark) for mark in ".?!,"] + [(" ' ", "'")]
CLEANED += [(f" {mark}", mark) for mark in ("n't", "'m", "'s", "'ve", "'re")]
TURNS = 8  # rounds of writing and reading until numbers no longer change
FORMS = ("{}", " {}", "a{}a", ".{}.", "\n{}\n", "{0}{0}")  # contexts in which a text may spell a token
# The first that finds its files reads the tokenizer.
FORMATS = (read_tokenizer_json, read_marian, read_gpt_bpe, read_byte_level, read_wordpiece, read_sentencepiece)


def read_tokenizer(folder: Path) -> ImportedTokenizer | None:
    """Read the tokenizer of a folder; None: it has no tokenizer files."""
    settings = read_settings(folder)
    specs = (read(folder, settings) for read in FORMATS)
    spec = next((spec for spec in specs if spec is not None), None)
    return None if spec is None else assemble_tokenizer(spec, settings)


def assemble_tokenizer(spec: TokenizerSpec, settings: TokenizerSettings) -> ImportedTokenizer:
    """Add the special tokens of the config files, and find which of them stand around a text."""
    pipeline = spec.pipeline
    with refuse_damaged(spec.where):
        _add_listed(pipeline, settings, spec.where)
        named = _add_named(pipeline, spec, settings)
        before, after = _sequence_template(spec, settings, named)
        between = probe_separator(pipeline, before, after) if spec.own else after * spec.separators
        if settings.flag("clean_up_tokenization_spaces", False) and not isinstance(pipeline.model, models.BPE):
            pipeline.decoder = _with_cleanup(pipeline.decoder)
        pipeline.post_processor = None  # special tokens around a text are added by Heddle
        block_special_token_injection(pipeline)
    return ImportedTokenizer(
        pipeline=_stable_scores(pipeline),
        source=spec.source,
        named=named,
        before=before,
        after=after,
        between=between,
        template=settings.template,
        limit=settings.limit,
        target=_target_pipeline(spec, settings),
    )


def _add_listed(pipeline: Tokenizer, settings: TokenizerSettings, where: str) -> None:
    """Add the tokens that the config lists by id; refuse an id that is not the next free one."""
    known = pipeline.get_added_tokens_decoder()
    for id, token in sorted(settings.added.items()):
        if known.get(id) != token:
            pipeline.add_tokens([token])
        found = pipeline.token_to_id(token.content)
        if found != id:
            raise DataError(f"{where}: added token {token.content[:40]!r}: want id {found}, the next free, got {id}")


def _add_named(pipeline: Tokenizer, spec: TokenizerSpec, settings: TokenizerSettings) -> dict[str, str]:
    """Make named tokens special; a new one gets the next id, as in transformers."""
    tokens = {key: AddedToken(name, special=True, normalized=False) for key, name in spec.named.items()}
    tokens = {key: token for key, token in tokens.items() if pipeline.token_to_id(token.content) is not None}
    for key, token in settings.named.items():
        tokens.pop(key, None)
        if token is not None:
            tokens[key] = token
    special = [*tokens.values(), *settings.more]
    special += [AddedToken(name, special=True, normalized=False) for name in spec.more]
    known = {token.content for token in pipeline.get_added_tokens_decoder().values() if token.special}
    pipeline.add_special_tokens([token for token in special if token.content not in known])
    return {key: token.content for key, token in tokens.items()}


def _target_pipeline(spec: TokenizerSpec, settings: TokenizerSettings) -> Tokenizer | None:
    """Return the pipeline for target texts, with the same tokens added."""
    if spec.target is None:
        return None
    with refuse_damaged(spec.where):
        _add_listed(spec.target, settings, spec.where)
        _add_named(spec.target, spec, settings)
        block_special_token_injection(spec.target)
    return _stable_scores(spec.target)


def _sequence_template(
    spec: TokenizerSpec, settings: TokenizerSettings, named: Mapping[str, str]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids around a text, from the post-processor, the tokenizer class, or flags of the config."""
    pipeline = spec.pipeline
    if spec.own:
        return probe_special_tokens(pipeline, spec.where)
    if spec.sequence is not None:
        before, after = spec.sequence
    else:
        before = ("bos_token",) if settings.flag("add_bos_token", False) else ()
        after = ("eos_token",) if settings.flag("add_eos_token", False) else ()
    known = pipeline.get_vocab(with_added_tokens=True)
    ids = {key: known[name] for key, name in named.items()}
    return tuple(ids[key] for key in before if key in ids), tuple(ids[key] for key in after if key in ids)


def _with_cleanup(decoder: decoders.Decoder | None) -> decoders.Decoder:
    """Return a decoder that also removes spaces before punctuation and contractions."""
    first = decoders.WordPiece(prefix="\0", cleanup=False) if decoder is None else decoder  # none: spaces
    return decoders.Sequence([first, decoders.Fuse(), *(decoders.Replace(*pair) for pair in CLEANED)])


def _stable_scores(pipeline: Tokenizer) -> Tokenizer:
    """Return a unigram pipeline whose scores do not change when it is saved and loaded.

    The library may read a number of more than 15 digits as a neighbouring one, so that a loaded tokenizer would have
    another fingerprint.
    """
    text = pipeline.to_str() if isinstance(pipeline.model, models.Unigram) else ""
    for _ in range(TURNS if text else 0):
        pipeline = Tokenizer.from_str(text)
        before, text = text, pipeline.to_str()
        if text == before:
            break
    return pipeline


# --- special tokens in text -------------------------------------------------------------------------------------------


def block_special_token_injection(pipeline: Tokenizer) -> None:
    """Prevent text from being tokenized as a special token: split after the first character of its name.

    Byte-level models need no split, since no merge ends in a special token. A unigram model always does.
    """
    special = [token.content for token in pipeline.get_added_tokens_decoder().values() if token.special]
    spelt = sorted(_spellable_tokens(pipeline, special), key=lambda name: (-len(name), name))  # for the fingerprint
    if not spelt:
        return
    firsts: dict[str, list[str]] = {}
    for name in spelt:
        firsts.setdefault(name[0], []).append(name[1:])
    one = [f"{re.escape(a)}(?={'|'.join(map(re.escape, rest))})" for a, rest in firsts.items()]
    cut = pre_tokenizers.Split(Regex("|".join(one)), behavior="merged_with_previous")
    if pipeline_steps(cut)[0] in pipeline_steps(pipeline.pre_tokenizer):
        return  # written by Heddle
    steps = [cut] if pipeline.pre_tokenizer is None else [pipeline.pre_tokenizer, cut]
    pipeline.pre_tokenizer = pre_tokenizers.Sequence(steps)


def _spellable_tokens(pipeline: Tokenizer, special: Iterable[str]) -> list[str]:
    """Return the special tokens of two characters or more that the model produces from plain text."""
    inner = pipeline.get_vocab(with_added_tokens=False)
    known = [name for name in special if name in inner and len(name) > 1]
    if isinstance(pipeline.model, models.Unigram):
        return known
    pipeline.encode_special_tokens = True
    found = []
    for name in known:
        texts = [form.format(name) for form in FORMS]
        if any(inner[name] in one.ids for one in pipeline.encode_batch(texts, add_special_tokens=False)):
            found.append(name)
    return found
