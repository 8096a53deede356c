"""Pipelines for SentencePiece models: normalization, order of pieces and special tokens of each tokenizer class."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from heddle.text.formats.default_special_tokens import NAMED
from heddle.text.formats.imported import TokenizerSpec, refuse_damaged
from heddle.text.formats.sentencepiece import (
    BPE,
    CONTROL,
    OWN,
    UNIGRAM,
    SentencePieceModel,
    merges_of,
    read_sentencepiece_model,
)
from heddle.text.formats.tokenizer_config import TokenizerSettings
from heddle.text.tokenizers import METASPACE

FILES = ("spiece.model", "tokenizer.model", "sentencepiece.bpe.model", "sentencepiece.model", "spm.model")
MAX_EXTRA_TOKENS = 1 << 16

Scored = list[tuple[str, float]]


def read_sentencepiece(folder: Path, settings: TokenizerSettings) -> TokenizerSpec | None:
    """Read a SentencePiece model; None: there is no such file."""
    path = next((folder / name for name in FILES if (folder / name).is_file()), None)
    if path is None:
        return None
    found = read_sentencepiece_model(path)
    known = KINDS if settings.kind or found.fallback == (found.model == UNIGRAM) else KINDS | {"": UNNAMED[found.model]}
    make = known[settings.class_of(known, str(path))]
    with refuse_damaged(str(path)):
        spec = make(found, settings)
        tokens = [AddedToken(p.text, special=p.kind == CONTROL, normalized=False) for p in found.of_kind(CONTROL, OWN)]
        spec.pipeline.add_tokens([token for token in tokens if spec.pipeline.token_to_id(token.content) is not None])
    return replace(spec, source=path.name, where=str(path))


def _plain(found: SentencePieceModel, settings: TokenizerSettings) -> TokenizerSpec:
    """Build a pipeline from the file's own settings."""
    pipeline = unigram_pipeline(
        scored_pieces(found), found.unknown, _charsmap(found), "always" if found.prefix else "never"
    )
    return TokenizerSpec(pipeline, "", "", found.named)


def _t5(found: SentencePieceModel, settings: TokenizerSettings) -> TokenizerSpec:
    """T5 (Raffel et al. 2020): sentinels after the pieces, highest first; </s> ends a text."""
    count = settings.number("extra_ids", 100, MAX_EXTRA_TOKENS)
    extra = [f"<extra_id_{i}>" for i in range(count - 1, -1, -1)]
    known = {piece.text for piece in found.pieces}
    vocab = scored_pieces(found) + [(name, 0.0) for name in extra if name not in known]
    pipeline = unigram_pipeline(vocab, found.unknown, _charsmap(found), "always")
    return TokenizerSpec(pipeline, "", "", NAMED["T5Tokenizer"], tuple(extra), ((), ("eos_token",)))


def _albert(found: SentencePieceModel, settings: TokenizerSettings) -> TokenizerSpec:
    """ALBERT (Lan et al. 2020): quotes unified, accents and case dropped, [CLS] and [SEP] around a text."""
    steps: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not settings.flag("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if settings.flag("do_lower_case", True):
        steps.append(normalizers.Lowercase())
    scheme = "always" if settings.flag("add_prefix_space", True) else "never"
    pipeline = unigram_pipeline(scored_pieces(found), found.unknown, steps + _charsmap(found), scheme)
    return TokenizerSpec(pipeline, "", "", NAMED["AlbertTokenizer"], sequence=(("cls_token",), ("sep_token",)))


def _xlm_roberta(found: SentencePieceModel, settings: TokenizerSettings) -> TokenizerSpec:
    """XLM-R (Conneau et al. 2020): four special tokens first, the mask last; <s> and </s> around a text."""
    first = ("<s>", "<pad>", "</s>", "<unk>")
    vocab = [(name, 0.0) for name in first] + scored_pieces(found)[3:] + [("<mask>", 0.0)]
    scheme = "always" if settings.flag("add_prefix_space", True) else "never"
    pipeline = unigram_pipeline(vocab, 3, _charsmap(found), scheme)
    around = ("bos_token",), ("eos_token",)
    return TokenizerSpec(pipeline, "", "", NAMED["XLMRobertaTokenizer"], sequence=around, separators=2)


def _pegasus(found: SentencePieceModel, settings: TokenizerSettings) -> TokenizerSpec:
    """Pegasus (Zhang et al. 2020): its masks and a hundred unused tokens come before the pieces."""
    offset = settings.number("offset", 103, MAX_EXTRA_TOKENS)
    unused = [f"<unk_{i}>" for i in range(2, offset)]
    vocab = [(name, 0.0) for name in ("<pad>", "</s>", "<mask_1>", "<mask_2>")] + [(name, -100.0) for name in unused]
    vocab += scored_pieces(found)[2:]
    steps: list[normalizers.Normalizer] = _charsmap(found) or [normalizers.Replace(Regex(r"\n"), " ")]
    pipeline = Tokenizer(models.Unigram(vocab, unk_id=next(i for i, (name, _) in enumerate(vocab) if name == "<unk>")))
    pipeline.normalizer = normalizers.Sequence([*steps, normalizers.Replace(Regex(" {2,}"), " ")])
    pipeline.pre_tokenizer = pre_tokenizers.Metaspace(METASPACE, prepend_scheme="always", split=True)
    pipeline.decoder = decoders.Metaspace(METASPACE, prepend_scheme="always", split=True)
    return TokenizerSpec(pipeline, "", "", NAMED["PegasusTokenizer"], ("<mask_1>", *unused), ((), ("eos_token",)))


def _llama(found: SentencePieceModel, settings: TokenizerSettings) -> TokenizerSpec:
    """Llama (Touvron et al. 2023): BPE over a whole text including spaces, with byte fallback."""
    vocab = {piece.text: id for id, piece in enumerate(found.pieces)}
    pipeline = llama_pipeline(vocab, merges_of(vocab), settings.flag("add_prefix_space", found.prefix))
    if settings.flag("legacy", False) and settings.flag("add_prefix_space", found.prefix):
        pipeline.pre_tokenizer = pre_tokenizers.Metaspace(METASPACE, prepend_scheme="always", split=False)
    return TokenizerSpec(pipeline, "", "", NAMED["LlamaTokenizer"])


def _gemma(found: SentencePieceModel, settings: TokenizerSettings) -> TokenizerSpec:
    """Gemma (2024): as Llama, but no space before a text."""
    vocab = {piece.text: id for id, piece in enumerate(found.pieces)}
    return TokenizerSpec(gemma_pipeline(vocab, merges_of(vocab)), "", "", NAMED["GemmaTokenizer"])


KINDS: dict[str, Callable[[SentencePieceModel, TokenizerSettings], TokenizerSpec]] = {
    "T5Tokenizer": _t5,
    "AlbertTokenizer": _albert,
    "XLMRobertaTokenizer": _xlm_roberta,
    "PegasusTokenizer": _pegasus,
    "LlamaTokenizer": _llama,
    "CodeLlamaTokenizer": _llama,
    "GemmaTokenizer": _gemma,
}
UNNAMED = {BPE: _llama, UNIGRAM: _plain}  # files alone: BPE with byte fallback as Llama, unigram without


# --- pipelines --------------------------------------------------------------------------------------------------------


def scored_pieces(found: SentencePieceModel) -> Scored:
    """Return pieces and scores for a unigram model."""
    return [(piece.text, piece.score) for piece in found.pieces]


def _charsmap(found: SentencePieceModel) -> list[normalizers.Normalizer]:
    return [] if found.charsmap is None else [normalizers.Precompiled(found.charsmap)]


def unigram_pipeline(vocab: Scored, unknown: int, steps: list[normalizers.Normalizer], scheme: str) -> Tokenizer:
    """Return a unigram pipeline that splits at whitespace and marks the space before a word."""
    pipeline = Tokenizer(models.Unigram(vocab, unk_id=unknown, byte_fallback=False))
    if steps:
        pipeline.normalizer = steps[0] if len(steps) == 1 else normalizers.Sequence(steps)
    marks = pre_tokenizers.Metaspace(METASPACE, prepend_scheme=scheme)
    pipeline.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), marks])
    pipeline.decoder = decoders.Metaspace(METASPACE, prepend_scheme=scheme)
    return pipeline


def llama_pipeline(vocab: dict[str, int], merges: list[tuple[str, str]], prefix: bool) -> Tokenizer:
    """Return Llama's pipeline: no pre-tokenization, and a space before the text or none."""
    pipeline = Tokenizer(models.BPE(vocab=vocab, merges=merges, fuse_unk=True, byte_fallback=True))
    scheme = "first" if prefix else "never"
    pipeline.pre_tokenizer = pre_tokenizers.Metaspace(METASPACE, prepend_scheme=scheme, split=False)
    steps = [decoders.Replace(METASPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    pipeline.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return pipeline


def gemma_pipeline(vocab: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
    """Return Gemma's pipeline, which adds no space before a text."""
    model = models.BPE(vocab=vocab, merges=merges, fuse_unk=True, unk_token="<unk>", byte_fallback=True)
    pipeline = Tokenizer(model)
    pipeline.normalizer = normalizers.Replace(" ", METASPACE)
    pipeline.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    steps = [decoders.Replace(METASPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    pipeline.decoder = decoders.Sequence(steps)
    return pipeline
