"""Recurrent networks: RNN, GRU, LSTM, QRNN, n-gram model, with attention, Transformer-XL, bidirectional, bridges."""

from heddle.nn.recurrent.activation_penalty import ActivationPenaltyConfig
from heddle.nn.recurrent.attention_rnn import (
    AdditiveAlignmentConfig,
    AlignmentConfig,
    AttentionRNN,
    AttentionRNNConfig,
    AttentionRNNSlot,
    BothUseConfig,
    CellUseConfig,
    ContextUseConfig,
    DotAlignmentConfig,
    GeneralAlignmentConfig,
    InputFeedingConfig,
    OutputUseConfig,
)
from heddle.nn.recurrent.bidirectional import Bidirectional, BidirectionalConfig
from heddle.nn.recurrent.bridge import BridgeConfig, EveryStepConfig, FirstStateConfig, NoBridgeConfig
from heddle.nn.recurrent.cells import GRUConfig, LSTMConfig, RNNConfig, StackedCellsConfig
from heddle.nn.recurrent.gates import CellGates
from heddle.nn.recurrent.mogrifier import MogrifierConfig
from heddle.nn.recurrent.ngram import NGramConfig
from heddle.nn.recurrent.qrnn import QRNNConfig
from heddle.nn.recurrent.recurrence import CellConfig, Recurrent, RecurrentConfig
from heddle.nn.recurrent.segment_recurrence import SegmentRecurrence, SegmentRecurrenceConfig
