"""Tokenizer formats: tokenizers of other libraries imported and exported (tokenizer.json, BPE, SentencePiece, GGUF)."""

from heddle.text.formats.gguf_tokenizer import read_gguf_tokenizer
from heddle.text.formats.imported import ImportedTokenizer
from heddle.text.formats.tokenizer_export import write_tokenizer
from heddle.text.formats.tokenizer_import import read_tokenizer
