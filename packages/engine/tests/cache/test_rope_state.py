import pytest
from spaninfer_engine.cache.rope_state import RopeState, rope_state_of
from spaninfer_engine.spec.attention_nodes import Attention, Heads, Rope, SplitQkv
from spaninfer_engine.spec.frequencies import Frequencies
from spaninfer_engine.spec.mlp_nodes import GatedMLP
from spaninfer_engine.spec.nodes import Decoder, Embedding, Head, Layer, Norms
from spaninfer_engine.spec.weight_nodes import Linear, Weight

LINEAR = Linear(Weight("w", (8, 8)))


def decoder(kind, **options):
    """Return a model of one layer with such frequencies."""
    frequencies = Frequencies(kind, 8, 1e4, max_len=20, original_len=20, **options)
    attention = Attention(
        Heads(1, 1, 8),
        SplitQkv(LINEAR, LINEAR, LINEAR),
        LINEAR,
        scale=1.0,
        group=0,
        positions=Rope("half", frequencies),
    )
    layer = Layer(attention, GatedMLP(LINEAR, LINEAR, LINEAR, "silu"), Norms())
    table = Weight("embedding", (50, 8))
    return Decoder("m", 50, 8, 20, Embedding(table), (layer,), None, Head(Linear(table)), ())


@pytest.mark.parametrize("kind", ["default", "linear", "llama3", "yarn"])
def test_most_frequencies_do_not_depend_on_length(kind):
    assert rope_state_of(decoder(kind)) == RopeState(None, None)


def test_dynamic_frequencies_give_every_position_beyond_the_limit_its_own_state():
    rotation = rope_state_of(decoder("dynamic"))

    assert rotation.states(16, 20, rope_seq_len=8) == ()
    assert rotation.states(18, 22, rope_seq_len=8) == ((), (), ((21,),), ((22,),))
    assert rotation.states(0, 2, rope_seq_len=30) == (((30,),), ((30,),))
    assert not rotation.needs_recompute(8, 100)


def test_longrope_that_recomputes_says_when():
    rotation = rope_state_of(decoder("longrope", recompute=True))

    assert not rotation.needs_recompute(8, 20)
    assert rotation.needs_recompute(8, 21)
    assert not rotation.needs_recompute(21, 22)


def test_frequencies_fixed_by_the_prompt_are_the_same_for_every_position():
    rotation = rope_state_of(decoder("ntk_prompt"))

    assert rotation.states(18, 60, rope_seq_len=8) == ()
    assert rotation.states(0, 3, rope_seq_len=30) == (((1,),),) * 3
    assert rotation.states(90, 92, rope_seq_len=30) == (((1,),),) * 2
