"""Every key of config.json is accounted for: read, expected, known to be inert, or reported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

from spaninfer_engine.errors import SpecError
from spaninfer_engine.spec.scope import Scope

# Keys that never change what a model computes: identity, training, and what other parts read.
INERT = frozenset(
    """
    architectures model_type auto_map _name_or_path name_or_path transformers_version dtype
    torch_dtype use_cache initializer_range init_std initializer_factor tokenizer_class
    tokenizer_type bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id unk_token_id
    decoder_start_token_id forced_bos_token_id forced_eos_token_id is_decoder is_encoder_decoder
    attention_dropout attention_probs_dropout_prob attn_dropout_prob attn_pdrop embd_pdrop
    resid_pdrop dropout hidden_dropout hidden_dropout_prob emb_dropout_prob activation_dropout
    classifier_dropout embedding_dropout layerdrop output_router_logits router_aux_loss_coef
    aux_loss_alpha seq_aux router_jitter_noise input_jitter_noise expert_dropout ep_size
    pretraining_tp gradient_checkpointing id2label label2id finetuning_task problem_type
    output_attentions output_hidden_states return_dict return_dict_in_generate
    chunk_size_feed_forward bf16 fp16 fp32 use_flash_attn use_flash_attention flash_attn
    flash_rotary fused_dense onnx_safe attn_implementation _attn_implementation
    attention_softmax_in_fp32 cache_implementation bias_dropout_fusion fp32_residual_connection
    pre_seq_len prefix_projection num_logits_to_keep max_length max_sequence_length
    model_max_length do_sample temperature top_k top_p context_window_size prefill_chunk_size
    slow_but_exact _from_model_config task_specific_params keys_to_ignore_at_inference
    qk_head_dim apply_query_key_layer_scaling hybrid_kernel_config unsloth_version
    is_llama_config transformers.js_config prefix quantization_config compression_config
    """.split()
)

# Keys that do: unread and with another value than these, the model would be another one.
DECISIVE: Mapping[str, tuple[object, ...]] = {
    "alibi": (False,),
    "attention_bias": (False,),
    "attention_multiplier": (),
    "attention_sink*": (),
    "attn_logit_softcapping": (),
    "bias": (False,),
    "clip_qkv": (),
    "dim_model_base": (),
    "embedding_multiplier": (1,),
    "final_logit_softcapping": (),
    "first_k_dense_replace": (0,),
    "head_dim": (),
    "hidden_act*": (),
    "*layer_norm_eps*": (),
    "layer_types": (),
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "mlp_bias": (False,),
    "moe_*": (),
    "n_group": (1,),
    "n_routed_experts": (0,),
    "n_shared_experts": (0,),
    "no_rope_layer*": (),
    "norm_topk_prob": (),
    "num_experts": (0, 1),
    "num_experts_per_tok": (0,),
    "num_key_value_heads": (),
    "num_local_experts": (0, 1),
    "parallel_attn": (False,),
    "*partial_rotary_factor": (1,),
    "position_embedding_type": (),
    "*qk_layernorm*": (False,),
    "*qk_norm*": (False,),
    "qkv_bias": (False,),
    "query_pre_attn_scalar": (),
    "residual_multiplier": (1,),
    "rms_norm_eps": (),
    "rope_type": ("default",),
    "rope_*": (),
    "rotary_*": (1,),
    "routed_scaling_factor": (1,),
    "scale_depth": (),
    "scale_emb": (1,),
    "scoring_func": (),
    "shared_expert_intermediate_size": (0,),
    "sliding_window*": (),
    "tie_word_embeddings": (),
    "topk_*": (),
    "use_alibi": (False,),
    "use_ragged_attention": (False,),
    "use_dynamic_ntk": (False,),
    "use_logn_attn": (False,),
    "use_mrope": (False,),
    "use_parallel_residual": (False,),
    "use_qkv_bias": (False,),
    "use_sliding_window": (False,),
}


def check_expected(scope: Scope) -> None:
    """Refuse a config that says anything else than the spec implements; absent and null pass."""
    for key, entry in scope.spec.said("config.expect").items():
        path, value = key, scope.key(key)
        scope.read.add(path)
        allowed = entry.text if isinstance(entry.text, tuple) else (entry.text,)
        if value is not None and value not in allowed:
            words = ", ".join(map(repr, allowed))
            problem = f"config.json says {value!r}; implemented is {words}"
            raise SpecError(entry.source, "config.expect", path, problem)


def unread(scope: Scope) -> tuple[str, ...]:
    """Return the config keys that were not read; SpecError if one changes the mathematics.

    To be called when everything is resolved.
    """
    ignored, unused = scope.texts("config", "ignore"), scope.texts("config", "unused")
    found = []
    for key, value in _leaves(scope):
        if key in INERT or value is None or any(fnmatchcase(key, each) for each in ignored):
            continue
        neutral = [each for pattern, each in DECISIVE.items() if fnmatchcase(key, pattern)]
        if neutral and value in neutral[0]:
            continue
        if not neutral or any(fnmatchcase(key, each) for each in unused):
            found.append(key)
        else:
            problem = (
                f"config.json says {value!r}, this changes the mathematics, and no value of "
                f"the spec reads it; read it, or name it under [config] ignore"
            )
            raise SpecError(scope.spec.source, "config", key, problem)
    return tuple(found)


def _leaves(scope: Scope) -> Iterator[tuple[str, object]]:
    """Yield the unread keys; of a table that was read by parts, the parts that were not."""
    for key, value in scope.config.items():
        if key in scope.read:
            continue
        parts = {path.split(".", 1)[1] for path in scope.read if path.startswith(f"{key}.")}
        if not parts or not isinstance(value, Mapping):
            yield key, value
            continue
        for inner, content in value.items():
            if inner not in parts:
                yield f"{key}.{inner}", content
    for key in ("rope_parameters", "rope_scaling"):
        yield from _fractions(scope, key)


def _fractions(scope: Scope, path: str) -> Iterator[tuple[str, object]]:
    """Yield the rotated parts of heads that stand unread in a table that is read as a whole."""
    table = scope.key(path)
    for inner, content in table.items() if isinstance(table, Mapping) else ():
        if inner == "partial_rotary_factor" and f"{path}.{inner}" not in scope.read:
            yield f"{path}.{inner}", content
        yield from _fractions(scope, f"{path}.{inner}")
