"""Surgery: changes to an existing model: LoRA added and merged, vocabulary resized, layers chosen."""

from heddle.models.surgery.adapters import add_adapters, lora, merge_adapters, with_adapters
from heddle.models.surgery.choose_layers import choose_layers, spread_layers, with_layers
from heddle.models.surgery.rebuild import rebuild
from heddle.models.surgery.replace_output import replace_output
from heddle.models.surgery.resize_vocabulary import exchange_vocab, resize_vocab, with_vocab
