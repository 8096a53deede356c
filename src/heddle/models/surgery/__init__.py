"""Surgery: a model changed after it was built: LoRA laid on and merged, vocabulary resized."""

from heddle.models.surgery.adapters import adapt, adapted, lora, merge
from heddle.models.surgery.rebuild import Network, expand_config, rebuilt
from heddle.models.surgery.resize_vocabulary import resize, resized

__all__ = ["Network", "adapt", "adapted", "expand_config", "lora", "merge", "rebuilt", "resize", "resized"]
