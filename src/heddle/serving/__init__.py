"""Serving: an engine that generates for many requests at once (continuous batching)."""

from heddle.serving.address import LOOPBACK, Address
from heddle.serving.engine import Engine
from heddle.serving.engine_config import EngineConfig
from heddle.serving.fair_queue import FairQueue, QueueFull
from heddle.serving.handle import Cancelled, DeadlineExceeded, EngineFault, EngineRequest, Event, Handle
from heddle.serving.prefix_trie import PrefixTrie
