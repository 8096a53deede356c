"""Training samples: what a model in training writes now and then; of pairs and conversations, for held-out ones."""

from collections.abc import Callable
from functools import cache
from itertools import islice
from pathlib import Path

from heddle.checkpoints.store import CONFIG
from heddle.core import UsageError, replace
from heddle.core.system import parse_json, read_text
from heddle.data.shards import Shards, open_prepared
from heddle.data.sources import CorpusConfig, Document
from heddle.decoding.generation import GenerationConfig, MultinomialSampling, generate
from heddle.models.networks import AutoregressiveModel, Model, require
from heddle.tasks.generation.caption import Captioner
from heddle.tasks.generation.translate import translator
from heddle.tasks.inputs import MediaInput, MediaInputs
from heddle.tasks.recognition import Utterance, transcriber
from heddle.tasks.scoring import with_special_tokens
from heddle.text.chat import Chat, load_template
from heddle.text.tokenizers import TOKENIZER, Tokenizer, load_tokenizer

TOKENS = 120
SOURCES = 3


def sample_writer(data: CorpusConfig, seed: int, folder: Path) -> Callable[[Model], str]:
    """Return a function that lets a model write a sample, with the tokenizer and the data of the run in a folder."""

    @cache
    def held_out() -> list[Document]:
        return _pairs(data, load_tokenizer(folder / TOKENIZER))

    @cache
    def chats() -> list[Document]:
        return list(islice(data.held_out(), SOURCES)) if data.chats and data.prepared is None else []

    @cache
    def sounds() -> list[Document]:
        return list(islice(data.held_out(), SOURCES)) if data.medium is not None and data.prepared is None else []

    def write(model: Model) -> str:
        tokenizer = load_tokenizer(folder / TOKENIZER)
        if model.reads == "images":
            return _captions(model, tokenizer, folder, sounds())
        if model.reads != "ids":
            return _transcriptions(model, tokenizer, folder, sounds())
        if model.reads_source:
            return _translations(model, tokenizer, held_out())
        refusal = UsageError(f"samples: {type(model).__name__} generates no text")
        writer = require(model, AutoregressiveModel, refusal)
        choice = MultinomialSampling(temperature=0.8, top_k=50, seed=seed)
        generation, template = GenerationConfig(max_tokens=TOKENS, strategy=choice), load_template(folder)
        if template is not None and chats() and all(document.conversation is not None for document in chats()):
            answers = _answers(writer, Chat(template, tokenizer), chats(), generation)
            if answers:
                return answers
        config = with_special_tokens(generation, tokenizer)
        return tokenizer.decode(generate(writer, [tokenizer.special_tokens.document_start], config)[0])

    return write


def _transcriptions(model: Model, tokenizer: Tokenizer, folder: Path, sounds: list[Document]) -> str:
    settings = parse_json(read_text(folder / CONFIG), str(folder / CONFIG))
    task = transcriber(model, tokenizer, settings, {"beams": 2, "max_tokens": TOKENS})
    heard = [Utterance(one.origin, one.media, one.text) for one in sounds if one.media is not None]
    lines = [f"source  {one.name}\ntarget  {one.reference}\nmodel   {found.text}" for one, found in task.run(heard)]
    return "\n\n".join(lines)


def _captions(model: Model, tokenizer: Tokenizer, folder: Path, images: list[Document]) -> str:
    settings = parse_json(read_text(folder / CONFIG), str(folder / CONFIG))
    task = Captioner.of(model, tokenizer, MediaInputs.of(settings, model.reads), {"beams": 2, "max_tokens": TOKENS})
    seen = [MediaInput(one.origin, one.media, (one.text,)) for one in images if one.media is not None]
    lines = [f"source  {one.input.origin}\ntarget  {one.input.texts[0]}\nmodel   {one.text}" for one in task.run(seen)]
    return "\n\n".join(lines)


def _translations(model: Model, tokenizer: Tokenizer, pairs: list[Document]) -> str:
    sources = [tokenizer.source(" ".join(pair.text.split()), pair.prototype) for pair in pairs]
    kept = [(pair, ids) for pair, ids in zip(pairs, sources, strict=True) if len(ids) <= model.context]
    task = translator(model, tokenizer, GenerationConfig(max_tokens=TOKENS))
    written = task.translate([ids for _, ids in kept])
    return "\n\n".join(_sample(pair, found.text) for (pair, _), found in zip(kept, written, strict=True))


def _sample(pair: Document, written: str) -> str:
    edited = "" if pair.prototype is None else f"edited  {pair.prototype}\n"
    return f"source  {pair.text}\n{edited}target  {pair.target}\nmodel   {written}"


def _answers(model: AutoregressiveModel, chat: Chat, chats: list[Document], generation: GenerationConfig) -> str:
    """Let a model answer in held-out conversations; write what it should have said beside it."""
    config = with_special_tokens(generation, chat.tokenizer)
    config = replace(config, stop=tuple(dict.fromkeys((*config.stop, *chat.stops.ids))))
    lines = []
    for document in chats:
        assert document.conversation is not None
        messages = document.conversation.messages
        number = next((i for i, one in enumerate(messages) if i and one.get("role") == "assistant"), None)
        if number is None:  # nobody asks
            continue
        try:
            prompt = chat.ids(messages[:number], tools=document.conversation.tools)
        except UsageError:  # the template takes no part of this conversation
            continue
        if len(prompt) >= model.context:
            continue
        answer = chat.tokenizer.decode(generate(model, [prompt], config)[0])
        for stop in chat.stops.texts:
            answer = answer.partition(stop)[0]
        asked, wanted = (messages[i].get("content", "") for i in (number - 1, number))
        lines.append(f"user    {asked}\ntarget  {wanted}\nmodel   {answer.strip()}")
    return "\n\n".join(lines)


def _pairs(data: CorpusConfig, tokenizer: Tokenizer) -> list[Document]:
    """Return the first held-out pairs as text; of prepared data, from their ids."""
    if data.prepared is None:
        held_out = data.resolve("target").held_out()
        return [pair for pair in islice(held_out, SOURCES) if pair.target is not None]
    prepared = open_prepared(data.prepared)
    if prepared is None or not prepared.pairs:
        return []
    sides = [Shards.open(prepared.valid / name) for name in ("source", "target")]
    texts = [[tokenizer.decode(side.document(i)) for side in sides] for i in range(min(SOURCES, sides[0].count))]
    return [Document(source, "", target=target) for source, target in texts]
