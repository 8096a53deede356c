"""Pre-tokenization: the regular expressions that split text before byte-level BPE, Heddle's and other models'."""

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_LOWER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
_UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"

# Heddle's: a contraction; a word with one mark before it; up to three digits; other marks; whitespace, whose last space
# goes with the next word. No match can contain a whole `<|name|>`.
HEDDLE = (
    r"'(?:[sdmt]|re|ve|ll)(?!\p{L})"
    r"|[^\r\n\p{L}\p{M}\p{N}]?[\p{L}\p{M}]+"
    r"| ?\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+"
    r"|\s+(?!\S)|\s+"
)
# GPT-2's pattern within the text between digits, each of which stands alone: spaces before a digit stay together.
SMOLLM = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?=\p{N})|\s+(?!\S)|\s+"
QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES
LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES
TEKKEN = _LOWER + "|" + _UPPER + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES
GPT4O = f"{_LOWER}{_CONTRACTIONS}?|{_UPPER}{_CONTRACTIONS}?" + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES

# Each of these splits before every space that follows another character, whatever the context, so that a text may be
# split there.
SPLITS_BEFORE_SPACES = frozenset((HEDDLE, SMOLLM, QWEN2, LLAMA3, TEKKEN, GPT4O))
