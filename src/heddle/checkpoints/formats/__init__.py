"""File formats of others: GGUF, and PyTorch's pickled weights, read without running them."""

from heddle.checkpoints.formats.gguf import GgufFile, is_gguf
from heddle.checkpoints.formats.gguf_models import hf_config_of_gguf, load_gguf_model
from heddle.checkpoints.formats.pytorch_pickle import unpickle_folder
