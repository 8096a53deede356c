"""Text: characters to token ids and back. Tokenizers, their file formats, chat templates, text normalization."""

from heddle.text import chat, formats, normalize, template, tokenizers
