"""Text: characters to token ids and back. Six kinds of tokenizer behind one class; knows nothing of tensors."""

from heddle.text.chat import TEMPLATE, Chat, load_template, named_template, template_controls
from heddle.text.formats import Found, read_tokenizer, tokenizer_of_gguf, write_tokenizer
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
from heddle.text.roles import Frame, Roles
from heddle.text.spelling import Spelling, spelling_of
from heddle.text.streaming import TextStream
from heddle.text.tokenizer import END, MASK, TOKENIZER, TOKENIZER_FILES, Tokenizer, load_tokenizer
from heddle.text.words import Word, spaced, words_of

__all__ = [
    "END",
    "MASK",
    "TEMPLATE",
    "TOKENIZER",
    "TOKENIZER_FILES",
    "BpeTokenizer",
    "ByteTokenizer",
    "CharacterTokenizer",
    "Chat",
    "Found",
    "Frame",
    "NormalConfig",
    "Roles",
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
    "read_tokenizer",
    "spaced",
    "spelling_of",
    "template_controls",
    "tokenizer_of_gguf",
    "words_of",
    "write_tokenizer",
]
