"""Other file formats: GGUF, and pickled PyTorch weights, which are read without running their code."""

from heddle.checkpoints.formats.gguf import GgufFile, is_gguf
from heddle.checkpoints.formats.gguf_models import hf_config_of_gguf, load_gguf_model
from heddle.checkpoints.formats.pytorch_pickle import unpickle_folder
