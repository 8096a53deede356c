"""Hugging Face folders: models loaded and saved, one small file for each family; PEFT adapters."""

from heddle.checkpoints.hf.convert import (
    check_family,
    load_model,
    load_weights,
    model_config_from_hf,
    read_model_config,
    save_model,
)
from heddle.checkpoints.hf.folder import (
    CHECKSUMS,
    CONFIG,
    GENERATION,
    INDEX,
    SINGLE,
    is_hf_folder,
    read_config,
    read_generation,
    read_index,
    refuse_nonempty,
    resolve_hub_link,
    write_folder,
)
from heddle.checkpoints.hf.hf_special_tokens import infer_special_tokens
from heddle.checkpoints.hf.peft import ADAPTER_CONFIG, base_model_name, is_adapter, load_adapter, save_adapter
from heddle.checkpoints.hf.weights import WeightSource
