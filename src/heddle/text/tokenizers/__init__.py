"""Tokenizers: byte, character, word, BPE, WordPiece, unigram; special tokens, streaming, word boundaries."""

from heddle.text.tokenizers.algorithms import (
    BpeTokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    PretrainedTokenizer,
    TokenizerConfig,
    UnigramTokenizer,
    WordPieceTokenizer,
    WordTokenizer,
)
from heddle.text.tokenizers.chunks import METASPACE, pipeline_steps, split_into_chunks
from heddle.text.tokenizers.extend import extend_tokenizer
from heddle.text.tokenizers.pretokenize import GPT4O, LLAMA3, QWEN2, SMOLLM, TEKKEN
from heddle.text.tokenizers.special_tokens import SequenceTemplate, SpecialTokens
from heddle.text.tokenizers.streaming import TextStream
from heddle.text.tokenizers.token_bytes import token_bytes_of, token_lengths
from heddle.text.tokenizers.tokenizer import (
    MASK,
    MAX_BYTES,
    TOKENIZER,
    TOKENIZER_CONFIG,
    TOKENIZER_FILES,
    Tokenizer,
    byte_symbols,
    catch_panics,
    check_expansion,
    load_tokenizer,
    parse_tokenizer,
)
from heddle.text.tokenizers.transfer import old_pieces
from heddle.text.tokenizers.word_boundaries import WORD, Word, sentence_ends, word_edges, word_start_ids, words_of
