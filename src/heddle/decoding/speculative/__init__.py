"""Speculative decoding: drafts guess tokens, the model verifies them all at once."""

from heddle.decoding.speculative.drafts import Draft, LookupDraft, ModelDraft
from heddle.decoding.speculative.speculative import speculate
