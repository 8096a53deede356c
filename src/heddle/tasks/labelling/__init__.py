"""Labelling: classes of texts, tags of words, answers in contexts, masked tokens and embeddings, by an encoder."""

from heddle.tasks.labelling.answer import Answer, Answerer
from heddle.tasks.labelling.classify import ClassifiedText, Classifier
from heddle.tasks.labelling.classify_media import ClassifiedMedia, MediaClassifier
from heddle.tasks.labelling.embed import Embedder
from heddle.tasks.labelling.fill import FilledToken, MaskFiller
from heddle.tasks.labelling.reader import EncoderReader, encoder_reader
from heddle.tasks.labelling.tag import TaggedText, TaggedWord, Tagger
