import gguf
import pytest
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.load.gguf.families import FAMILIES
from spaninfer_engine.load.gguf.metadata import Metadata

DENSE = {"blk.0.ffn_gate", "blk.0.ffn_up", "blk.0.ffn_down"}
HALVES = {"granitemoe": {"blk.0.ffn_gate_shexp", "blk.0.ffn_up_shexp"}}  # of one tensor there
BY_NAME = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}


@pytest.mark.parametrize("architecture", FAMILIES)
def test_names_are_those_that_the_format_s_own_table_gives(architecture):
    table = gguf.get_tensor_name_map(BY_NAME[architecture], 1)
    layer = FAMILIES[architecture].layer_names
    ours = {
        f"model.layers.0.{new.replace('.{e}', '')}": f"blk.0.{old}" for old, new in layer.items()
    }
    ours |= {new: old for old, new in FAMILIES[architecture].outer.items()}

    theirs = {name: table.get_name(name) for name in ours}

    # the table leaves out what an architecture lacks: a head that is tied, a gate that is fused, a
    # dense MLP
    lacking = {old for new, old in ours.items() if not theirs[new]}
    assert len(lacking - DENSE - HALVES.get(architecture, set())) <= 1
    assert {name: old for name, old in ours.items() if theirs[name]} == {
        name: old for name, old in theirs.items() if old
    }


SIZES = {
    "context_length": 4096,
    "embedding_length": 2304,
    "feed_forward_length": 9216,
    "block_count": 26,
    "attention.head_count": 8,
    "attention.head_count_kv": 4,
    "attention.key_length": 256,
    "attention.layer_norm_rms_epsilon": 9.999999974752427e-07,
}


def metadata(architecture: str, **more: object) -> Metadata:
    values = {f"{architecture}.{key}": value for key, value in (SIZES | more).items()}
    return Metadata("test.gguf", {"general.architecture": architecture, **values})


def test_gemma_2_divides_scores_by_its_head_size_and_by_its_width_per_head_when_large():
    keys = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    small = metadata("gemma2", **keys)
    large = metadata(
        "gemma2",
        **keys,
        **{
            "block_count": 46,
            "embedding_length": 4608,
            "attention.head_count": 32,
            "attention.key_length": 128,
        },
    )

    config = FAMILIES["gemma2"].config(small, {})

    assert config["query_pre_attn_scalar"] == 256  # as google/gemma-2-2b's config says
    assert config["attn_logit_softcapping"] == 50.0
    assert config["sliding_window"] == 4096
    assert config["rms_norm_eps"] == 1e-6
    assert config["head_dim"] == 256
    assert FAMILIES["gemma2"].config(large, {})["query_pre_attn_scalar"] == 144  # of the 27b


def test_yarn_and_linear_scaling_are_read_and_others_refused():
    yarn = metadata(
        "qwen2",
        **{
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 32768,
        },
    )
    odd = metadata("qwen2", **{"rope.scaling.type": "spiral"})

    assert FAMILIES["qwen2"].config(yarn, {})["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
    }
    with pytest.raises(ConfigError, match="'spiral' is not read"):
        FAMILIES["qwen2"].config(odd, {})
