"""Text: characters to token ids and back. Six kinds of tokenizer behind one class; knows nothing of tensors."""

from heddle.text import chat, formats, normalize, template, tokenizers
