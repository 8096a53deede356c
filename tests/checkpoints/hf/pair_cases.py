"""Cases of encoder-decoders, for the law of families."""

import transformers as hf
from checkpoints.hf.harness import CONTEXT, END, VOCAB, variants

# their cache has as many layers as the encoder, so no decoder here is deeper
T5 = {
    "vocab_size": VOCAB, "d_model": 32, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_decoder_layers": 1, "num_heads": 5,
    "decoder_start_token_id": 0, "eos_token_id": END,
}  # fmt: skip
# sources in the law have 60 tokens: more than the 10 places of `crowded`
SWITCH = {
    "vocab_size": VOCAB, "d_model": 32, "d_kv": 6, "d_ff": 40, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 5,
    "num_experts": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "decoder_start_token_id": 0,
    "eos_token_id": END,
}  # fmt: skip
BART = {
    "vocab_size": VOCAB, "d_model": 30, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 3,
    "decoder_attention_heads": 5, "encoder_ffn_dim": 40, "decoder_ffn_dim": 44, "max_position_embeddings": CONTEXT,
    "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": END, "decoder_start_token_id": 2, "forced_eos_token_id": None,
}  # fmt: skip

PAIRS = [
    *variants(
        hf.T5ForConditionalGeneration, T5,
        first={"num_decoder_layers": 2},
        buckets={"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "num_heads": 3},
        second={"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        gated_tied={"feed_forward_proj": "gated-gelu", "layer_norm_epsilon": 1e-5},
        silu={"feed_forward_proj": "gated-silu", "tie_word_embeddings": False},
    ),
    *variants(
        hf.SwitchTransformersForConditionalGeneration, SWITCH,
        every_third={},
        crowded={"expert_capacity": 10, "num_experts": 3, "relative_attention_num_buckets": 8, "num_heads": 3},
        everywhere={"num_sparse_encoder_layers": 3, "num_sparse_decoder_layers": 2, "tie_word_embeddings": False,
                    "dense_act_fn": "gelu"},
        second_only={"num_sparse_encoder_layers": 0, "num_sparse_decoder_layers": 3, "layer_norm_epsilon": 1e-5},
    ),
    *variants(
        hf.BartForConditionalGeneration, BART,
        gelu={"decoder_layers": 2},
        scaled={"scale_embedding": True, "activation_function": "relu"},
        long_encoder={"encoder_layers": 2, "decoder_attention_heads": 6},
    ),
    *variants(
        hf.MarianMTModel, BART,
        swish={"activation_function": "swish", "scale_embedding": True, "decoder_layers": 2},
        plain={"activation_function": "relu", "scale_embedding": False, "encoder_attention_heads": 5},
        wide={"encoder_layers": 2, "d_model": 60},
    ),
    *variants(
        hf.PegasusForConditionalGeneration, BART,
        relu={"activation_function": "relu", "scale_embedding": True, "decoder_layers": 2},
        gelu={"encoder_attention_heads": 6, "decoder_attention_heads": 1},
        long_encoder={"encoder_layers": 2, "d_model": 20, "encoder_attention_heads": 5},
    ),
]  # fmt: skip
