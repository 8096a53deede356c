"""CTC decoding: best paths, prefix beam search, and joint decoding with attention and a language model."""

from heddle.decoding.ctc.joint import CtcPrefixScorer, JointBeamSearch, JointDecoder
from heddle.decoding.ctc.language_model import PrefixLanguageModel
from heddle.decoding.ctc.prefix_beam import PrefixBeamSearch, Recognized, best_path, prefix_beam_search
from heddle.decoding.ctc.recognize import Recognizer, SearchKind, ctc_output
