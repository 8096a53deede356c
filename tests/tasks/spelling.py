"""A language model of a few sentences, and words to go with it, for tests of correcting."""

import torch

from heddle.models.networks import LanguageModel
from heddle.models.presets import PresetConfig
from heddle.tasks.correcting import Lexicon
from heddle.text.tokenizers import BpeTokenizer, Tokenizer

SENTENCES = [
    "she wrote a letter from the old town.",
    "please fill in the form and send it back.",
    "the weather is cold in the north today.",
    "i do not know whether he will come home.",
    "we thought about it and he taught me to swim.",
    "the company said that they like the new house.",
    "a lot of people live together in the city.",
    "it's a fine day and they don't care.",
]
COUNTS = {"the": 500, "a": 300, "and": 250, "they": 90, "that": 120, "from": 80, "form": 20, "lot": 30, "i": 200}


def known_words() -> Lexicon:
    """Return the words of the sentences, with counts that are plausible."""
    words = {word.strip(".") for sentence in SENTENCES for word in sentence.split()}
    return Lexicon({word: float(COUNTS.get(word, 10)) for word in words})


def small_model(steps: int = 80) -> tuple[LanguageModel, Tokenizer]:
    """Train a model of a few thousand weights until it knows the sentences by heart."""
    torch.manual_seed(0)
    tokenizer = BpeTokenizer(vocab=290, lowercase=True).train(SENTENCES)
    model = PresetConfig(name="first", layers=1, width=32, heads=2, vocab=tokenizer.vocab, context=96).build(1)
    assert isinstance(model, LanguageModel)
    rows = [[tokenizer.end, *tokenizer.encode(sentence), tokenizer.end] for sentence in SENTENCES]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    real = torch.tensor([[i < len(row) for i in range(1, longest)] for row in rows])
    descent = torch.optim.AdamW(model.parameters(), lr=2e-2)
    for _ in range(steps):
        loss = model.head.nll(model(ids[:, :-1])[real], ids[:, 1:][real]).mean()
        descent.zero_grad()
        loss.backward()
        descent.step()
    return model.eval(), tokenizer
