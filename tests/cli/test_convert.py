"""heddle convert, and heddle.load of whatever lies at a path: ours to theirs and back, all that belongs to it along."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers as hf
from cli.runs import save_run
from text.formats.makers import FOLDERS, gpt

import heddle
from heddle.cli.main import main
from heddle.core import UsageError
from heddle.models.presets import PresetConfig
from heddle.text.tokenizers import BpeTokenizer, Tokenizer

TEXT = "the cat sat on the mat and the dog ran after the cat\n"
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
CLASSES = {
    "gpt": hf.AutoModelForCausalLM,
    "gpt2": hf.AutoModelForCausalLM,
    "llama3-8b": hf.AutoModelForCausalLM,
    "t5-small": hf.AutoModelForSeq2SeqLM,
    "switch-base-8": hf.AutoModelForSeq2SeqLM,
    "bart-base": hf.AutoModelForSeq2SeqLM,
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return BpeTokenizer(vocab=280, special=("<|mask|>",)).train([TEXT * 20])


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run_of(name: str, tokenizer: Tokenizer, path: Path) -> Path:
    made = PresetConfig(name=name, layers=2, width=32, heads=4, vocab=tokenizer.vocab, context=64)
    save_run(path, made, tokenizer=tokenizer)
    return path


@pytest.mark.parametrize("name", CLASSES)
def test_a_run_becomes_a_folder_that_transformers_loads_and_speaks_the_same(
    name: str, tokenizer: Tokenizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, out = run_of(name, tokenizer, tmp_path / "runs" / "one"), tmp_path / "out"
    assert main(["convert", str(run), str(out)]) == 0
    ours, back = heddle.load(run), heddle.load(out)
    theirs, told = CLASSES[name].from_pretrained(out, output_loading_info=True)
    assert not any(told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    words = hf.AutoTokenizer.from_pretrained(out)
    given = words("the cat sat", return_tensors="pt")
    ids = theirs.generate(**given, max_new_tokens=12, do_sample=False, min_new_tokens=12)[0].tolist()
    new = ids[1:] if theirs.config.is_encoder_decoder else ids[given["input_ids"].shape[1] :]
    assert ours.generate("the cat sat", max_tokens=12, min_tokens=12) == words.decode(new, skip_special_tokens=True)
    assert back.generate("the cat sat", max_tokens=12, min_tokens=12) == ours.generate(
        "the cat sat", max_tokens=12, min_tokens=12
    )
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


def test_gpt_goes_in_and_out_with_its_own_words(tmp_path: Path) -> None:
    torch.manual_seed(2)
    sizes = {"vocab_size": 600, "n_positions": 64, "n_embd": 24, "n_layer": 2, "n_head": 3, "initializer_range": 0.5}
    theirs = hf.OpenAIGPTLMHeadModel(hf.OpenAIGPTConfig(**sizes)).eval()
    theirs.save_pretrained(gpt(tmp_path))
    assert main(["convert", str(tmp_path), "runs/one"]) == main(["convert", "runs/one", "out"]) == 0
    words, again = (hf.AutoTokenizer.from_pretrained(path) for path in (tmp_path, "out"))
    text = "The Cat's hat, naïve 🙂"
    given = words(text, return_tensors="pt")
    assert again(text)["input_ids"] == given["input_ids"][0].tolist()
    want = theirs.generate(**given, max_new_tokens=20, do_sample=False, pad_token_id=0)
    new = words.decode(want[0, given["input_ids"].shape[1] :])
    for place in (tmp_path, "runs/one", "out"):
        lm = heddle.load(place)
        assert lm.special_tokens is not None and lm.special_tokens.end == words.unk_token_id  # it has no end of its own
        assert lm.generate(text, max_tokens=20).strip() == new.strip()


def test_the_unknown_token_goes_along_too(tmp_path: Path) -> None:
    folder = FOLDERS["gpt2"](tmp_path)  # of bytes, so that its own model has no unknown token
    vocab = len(json.loads((folder / "vocab.json").read_text()))
    sizes = {"vocab_size": vocab, "n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2}
    hf.GPT2LMHeadModel(hf.GPT2Config(**sizes)).save_pretrained(folder)
    assert main(["convert", str(folder), "runs/one"]) == main(["convert", "runs/one", "out"]) == 0
    words, again = (hf.AutoTokenizer.from_pretrained(path) for path in (folder, "out"))
    assert words.unk_token is not None and again.unk_token == words.unk_token
    first, second = (heddle.load(path).special_tokens for path in (folder, "runs/one"))
    assert first == second and first is not None and first.unknown == words.unk_token_id


def test_an_encoder_goes_along_with_its_mask(tokenizer: Tokenizer, tmp_path: Path) -> None:
    run = run_of("bert-base-masked", tokenizer, tmp_path / "runs" / "one")
    assert main(["convert", str(run), "out"]) == 0
    ours, back = heddle.load(run), heddle.load("out")
    assert back.special_tokens is not None and back.special_tokens.mask == tokenizer.special["<|mask|>"]
    assert back.score(["the cat"])[0].logprob == pytest.approx(ours.score(["the cat"])[0].logprob, abs=1e-4)
    torch.testing.assert_close(back.embed(["the cat"]), ours.embed(["the cat"]))


@pytest.mark.parametrize(("name", "told"), [("bert-base-masked", True), ("roberta-base", False)])
def test_an_encoder_with_segments_is_told_them_there(
    name: str, told: bool, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    run_of(name, tokenizer, tmp_path / "runs" / "one")
    assert main(["convert", "runs/one", "out"]) == 0
    given = hf.AutoTokenizer.from_pretrained("out")("the cat", "the dog", return_tensors="pt")
    assert ("token_type_ids" in given) == told
    if told:
        assert given["token_type_ids"][0].tolist() == sorted(given["token_type_ids"][0].tolist()) != []
        assert given["token_type_ids"].max() == 1
    hf.AutoModel.from_pretrained("out")(**given)


def test_an_encoder_counts_places_there_as_here_whatever_its_tokens_are(
    tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of("roberta-base-masked", tokenizer, tmp_path / "runs" / "one")
    text = 'the "cat" sat'
    ids = tokenizer.encode(text)
    assert 1 in ids  # which RoBERTa's own code takes for padding, and does not count
    assert main(["convert", "runs/one", "out"]) == 0
    theirs, ours = hf.AutoModelForMaskedLM.from_pretrained("out"), heddle.load(run, device="cpu")
    torch.testing.assert_close(theirs(torch.tensor([ids])).logits, ours.logits([ids]), atol=1e-4, rtol=1e-4)
    assert heddle.load("out").score([text])[0].logprob == pytest.approx(ours.score([text])[0].logprob, abs=1e-3)
    capsys.readouterr()
    assert main(["convert", "runs/one", "other", "--family", "roberta"]) == 2
    assert "it pads with id 1" in capsys.readouterr().err.splitlines()[-1]


def test_a_folder_becomes_a_run_and_back(tokenizer: Tokenizer, tmp_path: Path) -> None:
    run = run_of("llama3-8b", tokenizer, tmp_path / "runs" / "one")
    (run / "chat_template.jinja").write_text(TEMPLATE)
    assert main(["convert", str(run), "out", "--dtype", "bfloat16"]) == 0
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == TEMPLATE
    assert json.loads(Path("out/config.json").read_text())["dtype"] == "bfloat16"
    assert main(["convert", "out", "again"]) == 0
    first, second = heddle.load("out"), heddle.load("again")
    assert (first.origin.is_heddle, second.origin.is_heddle) == (False, True)
    assert second.origin.template == TEMPLATE
    assert second.special_tokens == first.special_tokens
    assert second.generate("the cat", max_tokens=9) == first.generate("the cat", max_tokens=9)
    assert main(["chat", "-m", "again", "--once", "hi", "--max-tokens", "3"]) == 0


def test_what_is_found_is_told(tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of("gpt2", tokenizer, tmp_path / "runs" / "one")
    assert main(["convert", str(run), "out"]) == 0
    assert "a Hugging Face folder, family gpt2, tokenizer from tokenizer.json" in repr(heddle.load("out"))
    assert "a run of heddle at step" in repr(heddle.load(run))
    capsys.readouterr()
    assert main(["generate", "the", "-m", "out", "--max-tokens", "2"]) == 0
    assert "heddle: out, a Hugging Face folder, family gpt2" in capsys.readouterr().err
    assert main(["show", "out", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == sum(
        p.numel() for p in heddle.load(run).model.parameters()
    )


def test_a_folder_without_tokenizer_files_takes_ids(tokenizer: Tokenizer, tmp_path: Path) -> None:
    run = run_of("gpt2", tokenizer, tmp_path / "runs" / "one")
    assert main(["convert", str(run), "out"]) == 0
    whole = heddle.load("out")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "out" / name).unlink()
    bare = heddle.load("out")
    torch.testing.assert_close(bare.logits([[1, 2, 3]]), whole.logits([[1, 2, 3]]))
    assert bare.generate_ids([[5, 6]], max_tokens=7) == whole.generate_ids([[5, 6]], max_tokens=7)
    for call in (lambda: bare.generate("x"), lambda: bare.score(["x"]), lambda: bare.embed(["x"])):
        with pytest.raises(
            UsageError,
            match=r"out: has no tokenizer files that tell the end of a text, so it takes ids.*tokenizer\.json",
        ):
            call()
    assert main(["generate", "x", "-m", "out"]) == 2
    assert main(["convert", "out", "again"]) == 2


def test_a_card_tells_data_budget_scores_and_licence(tmp_path: Path) -> None:
    Path("text.txt").write_text(TEXT * 60)
    words = ["data=text.txt", "training.steps=4", "every.validate=2", "rows.length=16", "training.batch=2"]
    assert (
        main(
            [
                "train",
                *words,
                "tokenizer.vocab=280",
                "model.name=gpt2",
                "model.layers=1",
                "model.width=16",
                "model.heads=2",
            ]
        )
        == 0
    )
    assert main(["convert", "runs/first", "out", "--licence", "apache-2.0"]) == 0
    card = Path("out/README.md").read_text()
    for part in ('license: "apache-2.0"', "`text.txt`, read as text", "steps: 4", "held-out loss", "bits a byte"):
        assert part in card, card


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nowhere", "out"], "no run is called 'nowhere'"),
        (["openai-community/gpt2", "out"], "models are not downloaded from a hub: give the folder"),
        (["runs/one", "full"], "full: exists already; want a new or an empty folder"),
        (["runs/one", "out", "--family", "lama"], "did you mean 'llama'?"),
        (
            ["runs/one", "out", "--family", "llama"],
            "llama: cannot express this model: it needs a part like gated_feed_forward",
        ),
        (["runs/one", "out", "--dtype", "float3"], "dtype"),
        (["package:no-such-thing-here", "out"], "no such package is installed"),
        (["runs/one/config.json", "out"], "not a model: want a folder, or a GGUF file"),
    ],
)
def test_what_cannot_be_converted_is_told_in_a_line(
    words: list[str], told: str, tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_of("gpt2", tokenizer, tmp_path / "runs" / "one")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thing").touch()
    capsys.readouterr()
    assert main(["convert", *words]) == 2
    assert told in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "out").exists()


def test_a_part_without_a_counterpart_is_named(
    tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_run(
        tmp_path / "runs" / "one", PresetConfig(name="lstm_lm", width=16, vocab=tokenizer.vocab), tokenizer=tokenizer
    )
    assert main(["convert", "runs/one", "out"]) == 2
    assert "no Hugging Face family" in capsys.readouterr().err


def test_a_package_that_carries_a_model_is_found_without_running_it(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of("gpt2", tokenizer, tmp_path / "runs" / "one")
    assert main(["convert", str(run), "out"]) == 0
    package = tmp_path / "site" / "carrier_of_a_model"
    shutil.copytree("out", package / "inner")
    (package / "__init__.py").write_text("raise SystemExit('code was run')")
    monkeypatch.syspath_prepend(tmp_path / "site")
    lm = heddle.load("package:carrier-of-a-model")
    assert lm.generate("the cat", max_tokens=5) == heddle.load(run).generate("the cat", max_tokens=5)
    (tmp_path / "site" / "empty_thing").mkdir()
    (tmp_path / "site" / "empty_thing" / "__init__.py").touch()
    with pytest.raises(UsageError, match="contains no model"):
        heddle.load("package:empty-thing")


def test_training_starts_from_a_folder_of_others(tokenizer: Tokenizer, tmp_path: Path) -> None:
    run = run_of("llama3-8b", tokenizer, tmp_path / "runs" / "one")
    (run / "chat_template.jinja").write_text(TEMPLATE)
    assert main(["convert", str(run), "out"]) == 0
    Path("text.txt").write_text(TEXT * 60)
    words = ["data=text.txt", "init=out", "name=tuned", "training.steps=3", "rows.length=16", "training.batch=2"]
    assert main(["train", *words]) == 0
    tuned = heddle.load("runs/tuned")
    assert tuned.special_tokens == heddle.load("out").special_tokens
    assert tuned.origin.template == TEMPLATE
    assert main(["train", "runs/tuned", "training.steps=5"]) == 0
    assert main(["convert", "runs/tuned", "handed-on"]) == 0
    assert heddle.load("handed-on").generate("the", max_tokens=6) == heddle.load("runs/tuned").generate(
        "the", max_tokens=6
    )


def test_an_adapter_alone_is_handed_on_and_laid_over_its_model(tokenizer: Tokenizer, tmp_path: Path) -> None:
    run = run_of("llama3-8b", tokenizer, tmp_path / "runs" / "one")
    assert main(["convert", str(run), "base"]) == 0
    Path("text.txt").write_text(TEXT * 60)
    words = ["data=text.txt", "init=base", "name=tuned", "training.steps=3", "rows.length=16", "training.batch=2"]
    assert main(["train", "finetune", *words]) == 0
    assert main(["convert", "runs/tuned", "adapter", "--to", "peft"]) == 0
    tuned, laid = heddle.load("runs/tuned"), heddle.load("adapter")
    torch.testing.assert_close(laid.logits([[1, 2, 3]]), tuned.logits([[1, 2, 3]]))
    assert "an adapter over base, a Hugging Face folder, family llama" in repr(laid)
    assert main(["convert", "runs/tuned", "merged"]) == 0
    torch.testing.assert_close(
        heddle.load("merged").logits([[1, 2, 3]]), tuned.logits([[1, 2, 3]]), atol=1e-4, rtol=1e-4
    )
    assert main(["convert", "adapter", "adapter-again", "--to", "peft"]) == 0
    torch.testing.assert_close(heddle.load("adapter-again").logits([[1, 2, 3]]), laid.logits([[1, 2, 3]]))
    shutil.rmtree("base")
    with pytest.raises(UsageError, match="adapter: base model 'base' not found"):
        heddle.load("adapter")


def test_adapters_are_not_handed_on_without_weights_that_learned_beside_them(
    tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_of("llama3-8b", tokenizer, tmp_path / "runs" / "one")
    Path("text.txt").write_text(TEXT * 60)
    words = ["data=text.txt", "init=runs/one", "name=tuned", "training.steps=2", "rows.length=16", "training.batch=2"]
    assert main(["train", "finetune", *words, "unfrozen=[embedding.*]"]) == 0
    capsys.readouterr()
    assert main(["convert", "runs/tuned", "adapter", "--to", "peft"]) == 2
    assert "the run also trained base weights" in capsys.readouterr().err.splitlines()[-1]
    assert not Path("adapter").exists()
    assert main(["convert", "runs/tuned", "whole", "--to", "hf"]) == 0
