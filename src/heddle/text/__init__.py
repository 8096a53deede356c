"""Text: characters to token ids and back. Six kinds of tokenizer behind one class; knows nothing of tensors."""

from heddle.text.kinds import (
    BpeTokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    TokenizerConfig,
    UnigramTokenizer,
    WordPieceTokenizer,
    WordTokenizer,
)
from heddle.text.pieces import pieces
from heddle.text.streaming import TextStream
from heddle.text.tokenizer import END, Tokenizer, load_tokenizer

__all__ = [
    "END",
    "BpeTokenizer",
    "ByteTokenizer",
    "CharacterTokenizer",
    "TextStream",
    "Tokenizer",
    "TokenizerConfig",
    "UnigramTokenizer",
    "WordPieceTokenizer",
    "WordTokenizer",
    "load_tokenizer",
    "pieces",
]
