"""Tokenizers: byte, character, word, BPE, WordPiece, unigram; special tokens, streaming, word boundaries."""

from heddle.text.tokenizers.algorithms import (
    BpeTokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    TokenizerConfig,
    UnigramTokenizer,
    WordPieceTokenizer,
    WordTokenizer,
)
from heddle.text.tokenizers.chunks import MARK, pieces, steps_of
from heddle.text.tokenizers.growth import check_growth
from heddle.text.tokenizers.pretokenize import GPT4O, LLAMA3, QWEN2, TEKKEN
from heddle.text.tokenizers.special_tokens import Frame, Roles
from heddle.text.tokenizers.streaming import TextStream
from heddle.text.tokenizers.token_bytes import spelling_of
from heddle.text.tokenizers.tokenizer import (
    LARGEST,
    MASK,
    TOKENIZER,
    TOKENIZER_CONFIG,
    TOKENIZER_FILES,
    Tokenizer,
    guard,
    load_tokenizer,
    symbols,
)
from heddle.text.tokenizers.word_boundaries import Word, spaced, words_of

__all__ = [
    "GPT4O",
    "LARGEST",
    "LLAMA3",
    "MARK",
    "MASK",
    "QWEN2",
    "TEKKEN",
    "TOKENIZER",
    "TOKENIZER_CONFIG",
    "TOKENIZER_FILES",
    "BpeTokenizer",
    "ByteTokenizer",
    "CharacterTokenizer",
    "Frame",
    "Roles",
    "TextStream",
    "Tokenizer",
    "TokenizerConfig",
    "UnigramTokenizer",
    "Word",
    "WordPieceTokenizer",
    "WordTokenizer",
    "check_growth",
    "guard",
    "load_tokenizer",
    "pieces",
    "spaced",
    "spelling_of",
    "steps_of",
    "symbols",
    "words_of",
]
