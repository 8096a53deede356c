"""Formats: tokenizers of other makers in and out. tokenizer.json, vocabularies and merges, SentencePiece, GGUF."""

from heddle.text.formats.found import Found
from heddle.text.formats.gguf import tokenizer_of_gguf
from heddle.text.formats.reading import read_tokenizer
from heddle.text.formats.writing import write_tokenizer

__all__ = ["Found", "read_tokenizer", "tokenizer_of_gguf", "write_tokenizer"]
