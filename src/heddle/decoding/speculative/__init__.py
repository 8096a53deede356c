"""Speculative decoding: drafts propose tokens, the model verifies them all at once."""

from heddle.decoding.speculative.drafts import Draft, LookupDraft, ModelDraft, draft_chooser
from heddle.decoding.speculative.speculative import speculate
