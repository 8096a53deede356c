"""Formats: tokenizers of other makers in and out. tokenizer.json, vocabularies and merges, SentencePiece, GGUF."""

from heddle.text.formats.export import write_tokenizer
from heddle.text.formats.gguf import tokenizer_of_gguf
from heddle.text.formats.imported import Found
from heddle.text.formats.read import read_tokenizer

__all__ = ["Found", "read_tokenizer", "tokenizer_of_gguf", "write_tokenizer"]
