"""Networks: language model, encoder and encoder-decoder, made of towers."""

from heddle.models.networks.blocks import BIASED, macaron, parallel, post_norm, pre_norm, sandwich, with_entry
from heddle.models.networks.encoder import Encoder, EncoderConfig, RereadingDecoderConfig
from heddle.models.networks.encoder_decoder import INPUTS, ONE_TABLE, OUTPUT, EncoderDecoder, EncoderDecoderConfig
from heddle.models.networks.language_model import TIED, LanguageModel, LanguageModelConfig
from heddle.models.networks.model import AutoregressiveModel, Model, ModelConfig, NetworkConfig, TieConfig, require
from heddle.models.networks.tower import BaseTower, TowerConfig
