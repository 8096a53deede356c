"""Text: characters to token ids and back. Six kinds of tokenizer behind one class; knows nothing of tensors."""

from heddle.text.chat import Chat, load_template, named_template
from heddle.text.kinds import (
    BpeTokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    TokenizerConfig,
    UnigramTokenizer,
    WordPieceTokenizer,
    WordTokenizer,
)
from heddle.text.normal import NormalConfig, normal
from heddle.text.pieces import pieces
from heddle.text.spelling import Spelling, spelling_of
from heddle.text.streaming import TextStream
from heddle.text.tokenizer import END, MASK, Tokenizer, load_tokenizer
from heddle.text.words import Word, spaced, words_of

__all__ = [
    "END",
    "MASK",
    "BpeTokenizer",
    "ByteTokenizer",
    "CharacterTokenizer",
    "Chat",
    "NormalConfig",
    "Spelling",
    "TextStream",
    "Tokenizer",
    "TokenizerConfig",
    "UnigramTokenizer",
    "Word",
    "WordPieceTokenizer",
    "WordTokenizer",
    "load_template",
    "load_tokenizer",
    "named_template",
    "normal",
    "pieces",
    "spaced",
    "spelling_of",
    "words_of",
]
