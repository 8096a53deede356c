"""The encoder that `text_tasks.py pretrain` trains from scratch on masked tokens, in minutes of a GPU."""

from heddle.data.rows import PackedRows
from heddle.models.networks import EncoderConfig, TieConfig, pre_norm
from heddle.nn.attention import AttentionConfig, ProjectionsConfig
from heddle.nn.base import FanInInitConfig
from heddle.nn.channels import FeedForwardConfig
from heddle.nn.ends import TransformedHeadConfig
from heddle.nn.layers import RMSNormConfig
from heddle.nn.outputs import MaskedTokenOutputConfig, MeanConfig
from heddle.nn.positions import RotaryPositionConfig
from heddle.nn.stack import ChainConfig, EntryConfig, RepeatConfig
from heddle.objectives import MaskedTokenConfig
from heddle.text.tokenizers import BpeTokenizer
from heddle.training import EveryConfig, RunConfig, TrainingConfig
from heddle.training.optimizers import AdamWConfig, MuonConfig, StableDecayConfig

VOCAB = 16_384


def encoder(layers: int = 12, width: int = 512, heads: int = 8, context: int = 512) -> EncoderConfig:
    """Return a pre-norm encoder: rotary positions, normed queries and keys, squared ReLU, and the mean as pooling."""
    norm = RMSNormConfig()
    block = pre_norm(
        AttentionConfig(heads=heads, projections=ProjectionsConfig(norm=norm)),
        FeedForwardConfig(activation="relu_squared"),
        norm=norm,
    )
    return EncoderConfig(
        vocab=VOCAB,
        width=width,
        context=context,
        plan=ChainConfig(bodies=(EntryConfig(norm=norm), RepeatConfig(body=block, times=layers))),
        position=RotaryPositionConfig(),
        norm=norm,
        pooling=MeanConfig(),
        outputs=(MaskedTokenOutputConfig(head=TransformedHeadConfig(activation="gelu", norm=norm)),),
        init=FanInInitConfig(),
        ties=(TieConfig(share="outputs.masked_token.head.weight", of="embedding.weight"),),
    )


def encoder_run() -> RunConfig:
    """Return the run: a fifth of the tokens hidden, 32,768 tokens a step, Muon, a rate that stands and then falls."""
    return RunConfig(
        name="encoder",
        model=encoder(),
        tokenizer=BpeTokenizer(vocab=VOCAB),
        rows=PackedRows(length=256),
        objective=MaskedTokenConfig(mask_rate=0.2),
        training=TrainingConfig(
            steps=6000,
            batch=128,
            optimizer=MuonConfig(learning_rate=0.02, rest=AdamWConfig(learning_rate=2e-3, weight_decay=0.0)),
            schedule=StableDecayConfig(warmup=100, decay=0.5),
        ),
        every=EveryConfig(log=10, validate=1000, save=1000, sample=1_000_000),
    )
