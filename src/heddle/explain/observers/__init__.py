"""What is looked at: probabilities, attention, gates, logit lens, residual stream, experts, trace; and beams."""

from heddle.explain.observers.attention import Attention, AttentionMap, AttentionObserver
from heddle.explain.observers.attention_heads import AttentionThumbnails, attention_of_head, attention_thumbnails
from heddle.explain.observers.beams import BeamTree, beam_tree
from heddle.explain.observers.experts import ExpertChoices, ExpertsObserver
from heddle.explain.observers.gates import Gates, GatesObserver
from heddle.explain.observers.lens import Lens, LensObserver
from heddle.explain.observers.residual import Residual, ResidualObserver
from heddle.explain.observers.tokens import Candidate, Probabilities, best_tokens, probabilities
from heddle.explain.observers.trace import Trace, TraceObserver
