"""Tokenizer formats: tokenizers of other libraries imported and exported (tokenizer.json, BPE, SentencePiece, GGUF)."""

from heddle.text.formats.assemble import read_tokenizer
from heddle.text.formats.export import write_tokenizer
from heddle.text.formats.gguf_tokenizer import read_gguf_tokenizer
from heddle.text.formats.imported import ImportedTokenizer
