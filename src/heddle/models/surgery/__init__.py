"""Surgery: changes to an existing model: LoRA added and merged, vocabulary resized."""

from heddle.models.surgery.adapters import add_adapters, lora, merge_adapters, with_adapters
from heddle.models.surgery.rebuild import rebuild
from heddle.models.surgery.replace_output import replace_output
from heddle.models.surgery.resize_vocabulary import resize_vocab, with_vocab
