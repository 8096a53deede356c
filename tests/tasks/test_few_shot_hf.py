"""Few-shot labels of an imported Llama have the probabilities that transformers gives, whatever its tokenizer."""

from pathlib import Path

import pytest
import torch

hf = pytest.importorskip("transformers")

from tasks.test_labelling_hf import their_tokenizer  # noqa: E402

import heddle  # noqa: E402
from heddle.tasks.few_shot import Example, draw_examples  # noqa: E402

LABELS = ("the", "to")
EXAMPLES = [("a man", "the"), ("run", "to")]


@pytest.mark.parametrize("family", ["Roberta", "Albert"])  # byte-level BPE, and unigram with a space before each word
def test_labels_have_the_probabilities_of_transformers(family: str, tmp_path: Path) -> None:
    tokenizer = their_tokenizer(family)
    config = hf.LlamaConfig(
        vocab_size=len(tokenizer), max_position_embeddings=128, hidden_size=32, intermediate_size=64,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.cls_token_id, eos_token_id=tokenizer.sep_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = hf.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for weight in theirs.parameters():
            weight += 0.05 * torch.randn(weight.shape)
    theirs.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    lm = heddle.load(tmp_path, device="cpu")
    for k, gap in ((0, " "), (2, " "), (2, "")):
        template = f"Text: {{text}}\nLabel:{gap}{{label}}\n\n"
        found = lm.classify(["a dog", "sees"], labels=LABELS, examples=EXAMPLES, k=k, seed=3, template=template)
        drawn = draw_examples([Example(*one) for one in EXAMPLES], k, 3, balanced=True)
        shots = [(one.text, one.target) for one in drawn]
        for text, one in zip(("a dog", "sees"), found, strict=True):
            prompt = "".join(f"Text: {t}\nLabel:{gap}{label}\n\n" for t, label in shots) + f"Text: {text}\nLabel:"
            start = lm.tokenizer.encode_prompt(prompt)
            sums = []
            for label in LABELS:
                whole = lm.tokenizer.encode_prompt(f"{prompt}{gap}{label}")
                assert whole[: len(start)] == start
                with torch.no_grad():
                    logprobs = theirs(torch.tensor([whole])).logits[0].log_softmax(-1)
                sums.append(sum(logprobs[i - 1, whole[i]].item() for i in range(len(start), len(whole))))
            want = torch.tensor(sums).softmax(0).tolist()
            assert [one.probabilities[label] for label in LABELS] == pytest.approx(want, rel=1e-4)
