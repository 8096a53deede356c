"""Default special tokens of each tokenizer class, for folders whose configs name none."""

from collections.abc import Mapping

_END = "<|endoftext|>"
_BERT = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
_ROBERTA = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "sep_token": "</s>",
    "cls_token": "<s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
}
_T5 = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_LLAMA = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
NAMED: Mapping[str, Mapping[str, str]] = {
    "OpenAIGPTTokenizer": {"unk_token": "<unk>"},
    "GPT2Tokenizer": {"unk_token": _END, "bos_token": _END, "eos_token": _END},
    "GPTNeoXTokenizer": {"unk_token": _END, "bos_token": _END, "eos_token": _END, "pad_token": "<|padding|>"},
    "Qwen2Tokenizer": {"unk_token": _END, "eos_token": _END, "pad_token": _END},
    "RobertaTokenizer": _ROBERTA,
    "BartTokenizer": _ROBERTA,
    "XLMRobertaTokenizer": _ROBERTA,
    "BertTokenizer": _BERT,
    "DistilBertTokenizer": _BERT,
    "ElectraTokenizer": _BERT,
    "AlbertTokenizer": {
        "bos_token": "[CLS]",
        "eos_token": "[SEP]",
        "unk_token": "<unk>",
        "sep_token": "[SEP]",
        "pad_token": "<pad>",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
    },
    "T5Tokenizer": _T5,
    "MarianTokenizer": _T5,
    "PegasusTokenizer": {**_T5, "mask_token": "<mask_2>"},
    "LlamaTokenizer": _LLAMA,
    "CodeLlamaTokenizer": _LLAMA,
    "GemmaTokenizer": {
        "unk_token": "<unk>",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
    },
}
