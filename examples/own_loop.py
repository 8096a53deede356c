"""A training loop of one's own: a model of Heddle, plain PyTorch around it, and a run folder at the end.

python own_loop.py my.txt runs/own_loop --steps 200
heddle generate "Once" -m runs/own_loop
"""

import argparse
from pathlib import Path

import torch

import heddle
from heddle.text.tokenizers import BpeTokenizer

LENGTH, BATCH = 64, 8

parser = argparse.ArgumentParser(description="Train a small language model in a loop of one's own.")
parser.add_argument("text", type=Path)
parser.add_argument("folder", type=Path, help="a new folder for the model")
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--vocab", type=int, default=1024)
words = parser.parse_args()

text = words.text.read_text(encoding="utf-8")
tokenizer = BpeTokenizer(vocab=words.vocab).train([text])
ids = torch.tensor(tokenizer.encode(text))
model = heddle.build("first", layers=2, width=64, heads=2, vocab=tokenizer.vocab, context=LENGTH)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
draw = torch.Generator().manual_seed(0)

model.train()
for step in range(1, words.steps + 1):
    starts = torch.randint(len(ids) - LENGTH, (BATCH,), generator=draw).tolist()
    rows = torch.stack([ids[start : start + LENGTH + 1] for start in starts])
    loss = model.head.nll(model(rows[:, :-1]), rows[:, 1:]).mean()  # the head owns the loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == words.steps:
        print(f"step {step}  loss {loss.item():.3f}")

folder = heddle.LM(model.eval(), tokenizer).save(words.folder)
lm = heddle.load(folder)
print(lm)
print(lm.generate(text[:20], max_tokens=20))
