"""Tasks of an LM: classify, tag, answer and fill by an encoder; few-shot by a decoder; summarize and translate."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, overload

from heddle.arguments import as_texts, one_or_more
from heddle.core import ConfigError, DataError, UsageError
from heddle.decoding import GenerationOptions
from heddle.explain import ExplainFields, Explanation, explain, explain_options
from heddle.models.networks import Model
from heddle.tasks.few_shot import AnswerGenerator, FewShotClassifier, FewShotOptions, GeneratedAnswer, few_shot
from heddle.tasks.generation import Captioner, own_translator, summarizer
from heddle.tasks.inputs import MediaInputs
from heddle.tasks.labelling import (
    Answer,
    Answerer,
    ClassifiedText,
    Classifier,
    FilledToken,
    MaskFiller,
    MediaClassifier,
    TaggedText,
    Tagger,
)
from heddle.tasks.memory import BuildMemoryConfig, BuildMemoryOptions, build_memory
from heddle.tasks.recognition import FusedModel, TranscribeOptions, transcriber
from heddle.text.tokenizers import Tokenizer

if TYPE_CHECKING:
    from heddle.lm import Origin

CLASSIFY_OPTIONS = ("labels", "examples", "k", "seed", "calibrate", "template", "instruction")
ANSWER_OPTIONS = ("examples", "k", "seed", "template", "instruction", "max_tokens")
Filled = list[FilledToken] | list[list[FilledToken]]  # for the only mask of a text, or for each of several


class TextTasks(ABC):
    """Tasks of a model with its tokenizer: a text in, one result out; a list in, a list out.

    Texts that are longer than the model's context are read in windows that overlap.
    """

    model: Model
    origin: "Origin"
    _tokenizer: Tokenizer | None

    @property
    @abstractmethod
    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer."""

    def explain(self, text: str | Sequence[int], **options: Unpack[ExplainFields]) -> Explanation:
        """Look inside the model while it reads a text, or ids as given: `print` it, or use `.to_json()`, `.html()`.

        For a model of images, video or sound the text is the path of a file.

        The options are those of the command line: what, target, instead, output, corrupted, top, beams, max_tokens. For
        an encoder-decoder the text is the source, and `output` what it writes to it.
        """
        tokenizer = self.tokenizer if isinstance(text, str) else self._tokenizer
        if isinstance(text, str) and self.model.reads_source and self.model.reads != "ids":
            inputs = self._media_inputs()
            features = inputs.read(inputs.find([text])[0])
            return explain(self.model, tokenizer, features, explain_options(options), self.origin.description)
        return explain(self.model, tokenizer, text, explain_options(options), self.origin.description)

    @overload
    def classify(self, texts: str, *, pair: str | None = None, **prompt: Unpack[FewShotOptions]) -> ClassifiedText: ...
    @overload
    def classify(
        self, texts: list[str], *, pair: list[str] | None = None, **prompt: Unpack[FewShotOptions]
    ) -> list[ClassifiedText]: ...
    def classify(
        self,
        texts: str | Sequence[str],
        *,
        pair: str | Sequence[str] | None = None,
        **prompt: Unpack[FewShotOptions],
    ) -> ClassifiedText | list[ClassifiedText]:
        """Return the class of a text, or of each of a list, with the probabilities of all classes.

        `pair` is the second text of each, where the model was trained on two. Windows of a long text are averaged. For
        a model of images the texts are paths of files or folders.

        A model that writes text is prompted (few-shot): with `labels`, or a table of labels and the words for them;
        `examples`, tuples of text and label, of which `k` are drawn by `seed`; `calibrate`, a `template` such as
        `{text} => {label}`, and an `instruction`.
        """
        given, alone = one_or_more("classify", texts)
        seconds = None if pair is None else one_or_more("pair", pair)[0]
        if self.model.reads != "ids" and not prompt and pair is None:
            found = self._classify_media(given)
            return found[0] if alone and len(found) == 1 else found
        if prompt:
            prompting = few_shot(prompt, CLASSIFY_OPTIONS)
            found = FewShotClassifier.of(self.model, self.tokenizer, prompting, pair is not None).run(given, seconds)
        else:
            found = Classifier.of(self.model, self.tokenizer).run(given, seconds)
        return found[0] if alone else found

    @overload
    def tag(self, texts: str) -> TaggedText: ...
    @overload
    def tag(self, texts: list[str] | list[list[str]]) -> list[TaggedText]: ...
    def tag(self, texts: str | list[str] | list[list[str]]) -> TaggedText | list[TaggedText]:
        """Return the words of a text, or of each of a list, with their tags; in a list, a list of words is a text."""
        tagger = Tagger.of(self.model, self.tokenizer)
        if isinstance(texts, str):
            return tagger.run([texts])[0]
        return tagger.run([one if isinstance(one, str) else as_texts("tag", one, "a list of words") for one in texts])

    @overload
    def answer(  # type: ignore[overload-overlap]  # without options for a prompt, the answer is a span
        self, question: str, context: str, *, must: bool = False
    ) -> Answer: ...
    @overload
    def answer(  # type: ignore[overload-overlap]
        self, question: list[str], context: list[str], *, must: bool = False
    ) -> list[Answer]: ...
    @overload
    def answer(
        self, question: str, context: str | None = None, **prompt: Unpack[FewShotOptions]
    ) -> GeneratedAnswer: ...
    @overload
    def answer(
        self, question: list[str], context: list[str] | None = None, **prompt: Unpack[FewShotOptions]
    ) -> list[GeneratedAnswer]: ...
    def answer(
        self,
        question: str | Sequence[str],
        context: str | Sequence[str] | None = None,
        *,
        must: bool = False,
        **prompt: Unpack[FewShotOptions],
    ) -> Answer | GeneratedAnswer | list[Answer] | list[GeneratedAnswer]:
        """Return where a context answers a question, or each of a list; without an answer the text is empty.

        With `must` there is always an answer, however improbable.

        A model that writes text generates the answer, from memory if there is no context: after `examples`, tuples of
        question and answer, or of question, context and answer, of which `k` are drawn by `seed`; with a `template`
        such as `Q: {question} A: {answer}`, an `instruction`, and at most `max_tokens`.
        """
        given, alone = one_or_more("answer", question)
        contexts = None if context is None else one_or_more("context", context)[0]
        found: Sequence[Answer] | Sequence[GeneratedAnswer]
        if prompt or (contexts is None and self.model.can_generate):
            if must:
                raise UsageError("must: has no effect on answers that are generated")
            prompting = few_shot(prompt, ANSWER_OPTIONS)
            found = AnswerGenerator.of(self.model, self.tokenizer, prompting, contexts is not None).run(given, contexts)
        elif contexts is None:
            raise UsageError("context: want one for each question, because the model finds answers in texts, got none")
        else:
            found = Answerer.of(self.model, self.tokenizer, must).run(given, contexts)
        return found[0] if alone else list(found)  # type: ignore[return-value]  # all of one kind

    @overload
    def caption(  # type: ignore[overload-overlap]  # to a type checker, a text is a sequence of texts
        self, paths: str | Path, **options: Unpack[GenerationOptions]
    ) -> str: ...
    @overload
    def caption(self, paths: Sequence[str | Path], **options: Unpack[GenerationOptions]) -> list[str]: ...
    def caption(
        self, paths: str | Path | Sequence[str | Path], **options: Unpack[GenerationOptions]
    ) -> str | list[str]:
        """Return what the model writes to an image or a video, or to each of a list of files; beam search by default.

        A folder or a manifest in a list stands for all of its files, in order.
        """
        alone = isinstance(paths, str | Path)
        inputs = self._media_inputs()
        task = Captioner.of(self.model, self.tokenizer, inputs, options)
        found = list(task.run(inputs.find([paths] if isinstance(paths, str | Path) else paths)))
        for one in found:
            if one.error is not None:
                raise DataError(one.error)
        return found[0].text if alone and len(found) == 1 else [one.text for one in found]

    def _media_inputs(self) -> MediaInputs:
        return MediaInputs.of(self.origin.settings, self.model.reads)

    def _classify_media(self, paths: Sequence[str]) -> list[ClassifiedText]:
        """Return the class of each image, or of another medium."""
        inputs, classes = self._media_inputs(), list[ClassifiedText]()
        for one in MediaClassifier.of(self.model, inputs).run(inputs.find(paths)):
            if one.found is None:
                raise DataError(one.error or one.input.origin)
            classes.append(one.found)
        return classes

    @overload
    def summarize(self, texts: str, **options: Unpack[GenerationOptions]) -> str: ...
    @overload
    def summarize(self, texts: list[str], **options: Unpack[GenerationOptions]) -> list[str]: ...
    def summarize(self, texts: str | Sequence[str], **options: Unpack[GenerationOptions]) -> str | list[str]:
        """Return the summary of a text, or of each of a list, by an encoder-decoder such as T5 or BART.

        An imported model has settings for it (T5's prefix, beams, lengths), before which options come that are given. A
        text that is longer than the model's context is read in windows, whose summaries are joined.
        """
        given, alone = one_or_more("summarize", texts)
        task = summarizer(self.model, self.tokenizer, self.origin.settings, options)
        found = [one.text for one in task.run(given)]
        return found[0] if alone else found

    @overload
    def transcribe(  # type: ignore[overload-overlap]  # to a type checker, a path is a sequence of paths
        self, sounds: str | Path, *, lm: "TextTasks | None" = None, **options: Unpack[TranscribeOptions]
    ) -> str: ...
    @overload
    def transcribe(
        self, sounds: Sequence[str | Path], *, lm: "TextTasks | None" = None, **options: Unpack[TranscribeOptions]
    ) -> list[str]: ...
    def transcribe(
        self,
        sounds: str | Path | Sequence[str | Path],
        *,
        lm: "TextTasks | None" = None,
        **options: Unpack[TranscribeOptions],
    ) -> str | list[str]:
        """Return the text of a sound file, or of each of a list, by a model that was trained on sounds.

        `lm` is a language model with the same tokenizer, for shallow fusion. The options are those of the command line:
        beams, ctc_weight, lm_weight, length_bonus, max_tokens. A file that cannot be used is an error.
        """
        given = [sounds] if isinstance(sounds, str | Path) else list(sounds)
        fused = None if lm is None else FusedModel(lm.model, lm.tokenizer)
        task = transcriber(self.model, self.tokenizer, self.origin.settings, options, fused)
        found = [one for _, one in task.run(task.utterances(given))]
        for one in found:
            if one.fault is not None:
                raise UsageError(f"{one.name}: {one.fault}")
        return found[0].text if isinstance(sounds, str | Path) and Path(sounds).is_file() else [f.text for f in found]

    @overload
    def translate(self, texts: str, *, task: str | None = None, **options: Unpack[GenerationOptions]) -> str: ...
    @overload
    def translate(
        self, texts: list[str], *, task: str | None = None, **options: Unpack[GenerationOptions]
    ) -> list[str]: ...
    def translate(
        self, texts: str | Sequence[str], *, task: str | None = None, **options: Unpack[GenerationOptions]
    ) -> str | list[str]:
        """Return the translation of a text, or of each of a list, by an encoder-decoder that was trained on pairs.

        An imported model has settings for it (T5's prefix, Marian's beams), before which options come that are given;
        `task` chooses where it has several, such as en_to_de. A blank text stays blank; one that is longer than the
        model's context is refused.
        """
        given, alone = one_or_more("translate", texts)
        found = list(own_translator(self.model, self.tokenizer, self.origin.settings, options, task).run(given))
        return found[0] if alone else found

    @overload
    def fill(self, texts: str, *, top: int = 5) -> Filled: ...
    @overload
    def fill(self, texts: list[str], *, top: int = 5) -> list[Filled]: ...
    def fill(self, texts: str | Sequence[str], *, top: int = 5) -> Filled | list[Filled]:
        """Return the best tokens for the mask of a text, or of each of a list; where it has several, for each mask."""
        given, alone = one_or_more("fill", texts)
        gaps = MaskFiller.of(self.model, self.tokenizer, top).run(given)
        found: list[Filled] = [one[0] if len(one) == 1 else one for one in gaps]
        return found[0] if alone else found

    def build_memory(self, texts: Sequence[str], folder: str | Path, **options: Unpack[BuildMemoryOptions]) -> Path:
        """Write the hidden states of texts with the token after each (kNN-LM), for `with_memory`; return the folder.

        The options are precision (float16 or float32), window, stride and most, the largest number of tokens. A build
        that was interrupted is continued by the same call.
        """
        for name in options:
            if name not in BuildMemoryOptions.__annotations__:
                raise ConfigError.unknown(name, name, tuple(BuildMemoryOptions.__annotations__))
        given = as_texts("build_memory", texts)
        return build_memory(self.model, self.tokenizer, given, folder, BuildMemoryConfig(**options)).folder
