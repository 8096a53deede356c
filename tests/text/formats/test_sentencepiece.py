"""SentencePiece models are read without the library, to the same pieces; Marian's pairs as in transformers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from text.formats.makers import _sentencepiece_pipeline, corpus, strings

from heddle.core import DataError
from heddle.text.formats import read_tokenizer
from heddle.text.formats.sentencepiece import read_sentencepiece_model
from heddle.text.tokenizers import SpecialTokens, Tokenizer

Get = Callable[[str], Any]
FILES = {
    "t5": "spiece",
    "t5_own": "spiece",
    "albert": "spiece",
    "xlm_roberta": "sentencepiece.bpe",
    "llama": "tokenizer",
}


@pytest.mark.parametrize("name", FILES)
def test_pieces_are_those_of_the_library(name: str, folder: Get) -> None:
    path = folder(name) / f"{FILES[name]}.model"
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(path.read_bytes())
    found = read_sentencepiece_model(path)
    assert [(p.text, p.score, p.kind) for p in found.pieces] == [(p.piece, p.score, p.type) for p in proto.pieces]
    assert found.model == proto.trainer_spec.model_type
    assert found.fallback == proto.trainer_spec.byte_fallback
    assert found.prefix == proto.normalizer_spec.add_dummy_prefix
    assert (found.charsmap or b"") == proto.normalizer_spec.precompiled_charsmap
    assert found.pieces[found.unknown].text == proto.trainer_spec.unk_piece


def test_a_model_of_no_class_follows_its_own_settings(folder: Get, tmp_path: Path) -> None:
    for name, file in (("llama", "tokenizer.model"), ("xlm_roberta", "sentencepiece.bpe.model")):
        place = tmp_path / name
        place.mkdir()
        (place / file).write_bytes((folder(name) / file).read_bytes())
        found = read_tokenizer(place)
        assert found is not None
        library = sentencepiece.SentencePieceProcessor(model_file=str(place / file))
        for line in corpus().splitlines()[:80]:
            text = " ".join(line.split())
            assert found.pipeline.encode(text, add_special_tokens=False).ids == library.encode(text), text


@pytest.mark.parametrize(("kind", "fallback"), [("unigram", True), ("bpe", False)])
def test_a_model_of_no_class_whose_ids_would_be_guessed_is_refused(kind: str, fallback: bool, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text(corpus())
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "lines"), model_prefix=str(tmp_path / "spiece"), minloglevel=2, vocab_size=600,
        model_type=kind, byte_fallback=fallback,
    )  # fmt: skip
    with pytest.raises(DataError, match=r"spiece\.model: .*tokenizer_class: want one of Albert.*, got none"):
        read_tokenizer(tmp_path)


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models over one vocabulary; the second knows no capitals, and letters that the first does not."""
    folder = tmp_path_factory.mktemp("marian")
    _sentencepiece_pipeline(folder, "source", model_type="unigram", vocab_size=300)
    lines = [f"{line.lower()} ŵŷẑ ŵ" for line in corpus().splitlines() if line.strip()]
    (folder / "lines").write_text("\n".join(lines))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "lines"), model_prefix=str(folder / "target"), minloglevel=2, vocab_size=250
    )
    pieces: list[str] = []
    for name in ("source", "target"):
        (folder / f"{name}.model").rename(folder / f"{name}.spm")
        library = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{name}.spm"))
        pieces += [library.id_to_piece(i) for i in range(3, len(library))]
    names = ["</s>", "<unk>", *dict.fromkeys(pieces), ">>fr<<", "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}))
    (folder / "config.json").write_text('{"model_type": "marian"}')
    (folder / "tokenizer_config.json").write_text('{"source_lang": "en", "target_lang": "de"}')
    return folder


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_marian_s_pair_cuts_what_it_reads_and_what_it_writes_as_transformers(marian: Path) -> None:
    from transformers import AutoTokenizer

    theirs, found = AutoTokenizer.from_pretrained(marian), read_tokenizer(marian)
    assert found is not None and found.target is not None
    assert (found.before, found.after) == ((), (0,))
    lines = [line.strip() for line in corpus().splitlines() if line.strip()][:300]
    for text in [*lines, ">>fr<< the hat", "a ŵ b", "  two  spaces "]:
        source = found.pipeline.encode(text, add_special_tokens=False).ids
        assert [*source, *found.after] == theirs(text)["input_ids"], text
        target = found.target.encode(text.lower(), add_special_tokens=False).ids
        assert [*target, *found.after] == theirs(text_target=text.lower())["input_ids"], text
        assert found.pipeline.decode(target) == theirs.decode(target, skip_special_tokens=True)
        assert found.target.decode(source) == theirs.decode(source, skip_special_tokens=True)


def test_two_that_write_other_ids_have_other_fingerprints(marian: Path) -> None:
    found = read_tokenizer(marian)
    assert found is not None and found.target is not None
    special_tokens = SpecialTokens(end=0, begin=0)
    one, other = (Tokenizer(found.pipeline, special_tokens, target=t) for t in (found.target, found.pipeline))
    assert one.fingerprint != other.fingerprint != Tokenizer(found.pipeline, special_tokens).fingerprint


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_marian_decodes_any_ids_as_transformers(marian: Path) -> None:
    import random

    from transformers import AutoTokenizer

    theirs, found, rng = AutoTokenizer.from_pretrained(marian), read_tokenizer(marian), random.Random(0)
    assert found is not None
    known = [i for i in range(len(theirs)) if theirs.convert_ids_to_tokens(i) != ">>fr<<"]
    for _ in range(200):
        ids = rng.choices(known, k=rng.randrange(20))
        assert found.pipeline.decode(ids) == theirs.decode(ids, skip_special_tokens=True), ids
    texts = strings(200)
    found.pipeline.encode_special_tokens = True
    same = [[*found.pipeline.encode(t, add_special_tokens=False).ids, 0] == theirs(t)["input_ids"] for t in texts]
    assert sum(same) > 0.7 * len(texts)  # the library reads marks cluster by cluster, and SentencePiece does not
