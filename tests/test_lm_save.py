"""lm.save: any model becomes a run that heddle.load and every verb take."""

from pathlib import Path

import pytest
import torch
from cli.runs import CONTEXT, TOKENIZER, config, save_run

import heddle
from heddle.cli.main import main
from heddle.core import HeddleError, UsageError
from heddle.text.tokenizers import BpeTokenizer

TEXT = "".join(f"Line {i} of a text that says what line {i} is.\n" for i in range(60))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.txt").write_text(TEXT)


def test_a_model_of_ones_own_loop_is_taken_by_every_verb() -> None:
    tokenizer = BpeTokenizer(vocab=300).train([TEXT])
    model = heddle.build("first", layers=1, width=16, heads=2, vocab=tokenizer.vocab, context=48)
    ids = torch.tensor([tokenizer.encode(TEXT)[:33]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.head.nll(model(ids[:, :-1]), ids[:, 1:]).mean().backward()
    optimizer.step()
    saved = heddle.LM(model.eval(), tokenizer).save("runs/own")
    again = heddle.load(saved)
    assert torch.equal(again.logits(ids.tolist()), heddle.LM(model, tokenizer).logits(ids.tolist()))
    assert again.tokenizer.encode("Line 3") == tokenizer.encode("Line 3")
    tiny = ["training.steps=1", "training.batch=2", "rows.length=32", "validation_rows=2", "name=tuned"]
    for words in (
        ["generate", "Line", "-m", "own", "--max-tokens", "3"],
        ["score", "my.txt", "-m", "own"],
        ["evaluate", "-m", "own", "--data", "my.txt"],
        ["show", "runs/own"],
        ["convert", "own", "again", "--to", "heddle"],
        ["train", "first", "init=runs/own", "data=my.txt", *tiny],
    ):
        assert main(words) == 0, words


def test_a_saved_model_is_no_run_to_resume(capsys: pytest.CaptureFixture[str]) -> None:
    save_run(Path("made"))
    heddle.load("made").save("again")
    assert main(["train", "again"]) == 2
    assert "a model without its optimizer; to train from it: init=again" in capsys.readouterr().err


def test_a_model_with_a_chat_template_keeps_it() -> None:
    save_run(Path("made"))
    Path("made/chat_template.jinja").write_text("{{ messages[0].content }}")
    heddle.load("made").save("again")
    assert heddle.load("again").origin.template == "{{ messages[0].content }}"


def test_what_cannot_be_saved_is_refused_and_leaves_nothing() -> None:
    model = config().build()
    with pytest.raises(UsageError, match="has no tokenizer files"):
        heddle.LM(model, None).save("new")
    save_run(Path("made"), config("llama", layers=1, width=64, heads=2, kv_heads=2, hidden=64, context=CONTEXT))
    with pytest.raises(HeddleError, match="quantized"):
        heddle.load("made", weights="int8").save("new")
    assert not Path("new").exists()
    for folder in ("made", "my.txt"):
        with pytest.raises(HeddleError):
            heddle.LM(model, TOKENIZER).save(folder)
    with pytest.raises(UsageError, match="save: want a folder"):
        heddle.LM(model, TOKENIZER).save(None)  # type: ignore[arg-type]
    assert Path("my.txt").read_text() == TEXT
