"""WordPiece (Schuster & Nakajima 2012; Devlin et al. 2019) from vocab.txt, one piece per line."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from heddle.core import DataError
from heddle.text.formats.default_special_tokens import NAMED
from heddle.text.formats.imported import MAX_TOKENS, TokenizerSpec, read_lines, refuse_damaged
from heddle.text.formats.tokenizer_config import TokenizerSettings

FILE = "vocab.txt"
NAMES = NAMED["BertTokenizer"]
CLASSES = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer", "LxmertTokenizer")


def read_wordpiece(folder: Path, settings: TokenizerSettings) -> TokenizerSpec | None:
    """Read vocab.txt; None: there is no such file."""
    path = folder / FILE
    if not path.is_file():
        return None
    settings.class_of(CLASSES, str(path), CLASSES[0])
    pieces = read_lines(path)
    if not 0 < len(pieces) <= MAX_TOKENS:
        raise DataError(f"{path}: want from 1 to {MAX_TOKENS} pieces, got {len(pieces)}")
    vocab = {piece.rstrip(): id for id, piece in enumerate(pieces)}
    named = settings.named.get("unk_token")
    unknown = NAMES["unk_token"] if named is None else named.content
    if unknown not in vocab:
        raise DataError(f"{path}: want the piece {unknown!r}, the unknown token")
    with refuse_damaged(str(path)):
        pipeline = Tokenizer(models.WordPiece(vocab=vocab, unk_token=unknown))
        pipeline.normalizer = _normalizer(settings)
    pipeline.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pipeline.decoder = decoders.WordPiece(prefix="##")
    return TokenizerSpec(pipeline, FILE, str(path), NAMES, sequence=(("cls_token",), ("sep_token",)))


def _normalizer(settings: TokenizerSettings) -> normalizers.Normalizer:
    """Return the normalizer; by default, accents are stripped if text is lowercased."""
    accents = None if settings.config.get("strip_accents") is None else settings.flag("strip_accents", False)
    return normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.flag("tokenize_chinese_chars", True),
        strip_accents=accents,
        lowercase=settings.flag("do_lower_case", True),
    )
