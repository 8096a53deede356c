"""Recurrent networks: RNN, GRU, LSTM, QRNN, mogrifier, n-gram window, attention inside the cell, bridges."""

from heddle.nn.recurrent.activation_penalty import CalmConfig
from heddle.nn.recurrent.attention_rnn import (
    AdditiveAlignmentConfig,
    AlignmentConfig,
    Attentive,
    AttentiveConfig,
    BothUseConfig,
    CellUseConfig,
    DotAlignmentConfig,
    GeneralAlignmentConfig,
    InputFeedingConfig,
    OutputUseConfig,
    UseConfig,
)
from heddle.nn.recurrent.bidirectional import BidirectionalConfig
from heddle.nn.recurrent.bridge import BridgeConfig, EveryStepConfig, FirstStateConfig, NoBridgeConfig
from heddle.nn.recurrent.cells import DeepConfig, GRUConfig, LSTMConfig, RNNConfig
from heddle.nn.recurrent.mogrifier import MogrifierConfig
from heddle.nn.recurrent.ngram import NGramConfig
from heddle.nn.recurrent.qrnn import QRNNConfig
from heddle.nn.recurrent.recurrence import Carrying, CellConfig, RecurrenceConfig

__all__ = [
    "AdditiveAlignmentConfig",
    "AlignmentConfig",
    "Attentive",
    "AttentiveConfig",
    "BidirectionalConfig",
    "BothUseConfig",
    "BridgeConfig",
    "CalmConfig",
    "Carrying",
    "CellConfig",
    "CellUseConfig",
    "DeepConfig",
    "DotAlignmentConfig",
    "EveryStepConfig",
    "FirstStateConfig",
    "GRUConfig",
    "GeneralAlignmentConfig",
    "InputFeedingConfig",
    "LSTMConfig",
    "MogrifierConfig",
    "NGramConfig",
    "NoBridgeConfig",
    "OutputUseConfig",
    "QRNNConfig",
    "RNNConfig",
    "RecurrenceConfig",
    "UseConfig",
]
