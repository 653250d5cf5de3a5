import struct
from pathlib import Path

import numpy as np
import pytest
from spaninfer_engine.errors import CheckpointError
from spaninfer_engine.load.containers.llama2c import open_llama2c
from spaninfer_engine.load.containers.llama2c_pieces import read_pieces
from spaninfer_engine.vocab import PieceType

DIM, FFN, LAYERS, HEADS, KV, VOCAB, CONTEXT = 8, 12, 2, 2, 1, 5, 6
HEAD = DIM // HEADS
SIZES = (DIM, FFN, LAYERS, HEADS, KV)


def arrays() -> dict[str, np.ndarray]:
    """The weights by llama2.c's names, layers stacked; small whole numbers, exact in int8."""
    rng = np.random.default_rng(0)
    shapes = {
        "embedding": (VOCAB, DIM),
        "att_norm": (LAYERS, DIM),
        "wq": (LAYERS, DIM, DIM),
        "wk": (LAYERS, KV * HEAD, DIM),
        "wv": (LAYERS, KV * HEAD, DIM),
        "wo": (LAYERS, DIM, DIM),
        "ffn_norm": (LAYERS, DIM),
        "w1": (LAYERS, FFN, DIM),
        "w2": (LAYERS, DIM, FFN),
        "w3": (LAYERS, FFN, DIM),
        "norm": (DIM,),
        "rope": (2, CONTEXT, HEAD // 2),
        "head": (VOCAB, DIM),
    }
    return {name: rng.integers(-100, 100, shape).astype("<f4") for name, shape in shapes.items()}


def v0(w: dict[str, np.ndarray], *, tied: bool) -> bytes:
    order = "embedding att_norm wq wk wv wo ffn_norm w1 w2 w3 norm rope".split()
    header = struct.pack("<7i", *SIZES, VOCAB if tied else -VOCAB, CONTEXT)
    return header + b"".join(w[name].tobytes() for name in order + ([] if tied else ["head"]))


def new_header(version: int, tied: bool, tail: bytes = b"") -> bytes:
    text = struct.pack("<Ii7iB", 0x616B3432, version, *SIZES, VOCAB, CONTEXT, tied) + tail
    return text.ljust(256, b"\0")


def v1(w: dict[str, np.ndarray], *, tied: bool) -> bytes:
    order = "att_norm ffn_norm norm embedding wq wk wv wo w1 w2 w3".split()
    order += [] if tied else ["head"]
    return new_header(1, tied) + b"".join(w[name].tobytes() for name in order)


def v2(w: dict[str, np.ndarray], *, tied: bool, group: int = 4) -> bytes:
    """Every value is its code: the scales are 0.5, so the weights read are halves."""

    def quantised(array: np.ndarray) -> bytes:
        scales = np.full(array.size // group, 0.5, "<f4")
        return array.astype(np.int8).tobytes() + scales.tobytes()

    out = new_header(2, tied, struct.pack("<i", group))
    out += b"".join(w[name].tobytes() for name in ("att_norm", "ffn_norm", "norm"))
    out += quantised(w["embedding"])
    for name in ("wq", "wk", "wv", "wo", "w1", "w2", "w3"):
        out += b"".join(quantised(layer) for layer in w[name])
    return out + (b"" if tied else quantised(w["head"]))


def halved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Even rows of each head first, then the odd ones."""
    each = rows.reshape(heads, -1, rows.shape[-1])
    return np.concatenate([each[:, 0::2], each[:, 1::2]], 1).reshape(rows.shape)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("write", "scale"), [(v0, 1), (v1, 1), (v2, 0.5)])
def test_all_versions_give_the_same_weights_under_hugging_face_names(tmp_path, write, scale, tied):
    w = arrays()
    path = tmp_path / "model.bin"
    path.write_bytes(write(w, tied=tied))

    config, reader = open_llama2c(path)

    assert config["tie_word_embeddings"] is tied
    assert (config["num_key_value_heads"], config["max_position_embeddings"]) == (KV, CONTEXT)
    expected = {
        "model.embed_tokens.weight": w["embedding"] * scale,
        "model.norm.weight": w["norm"],
    } | ({} if tied else {"lm_head.weight": w["head"] * scale})
    for i in range(LAYERS):
        prefix = f"model.layers.{i}."
        expected |= {
            prefix + "input_layernorm.weight": w["att_norm"][i],
            prefix + "post_attention_layernorm.weight": w["ffn_norm"][i],
            prefix + "self_attn.q_proj.weight": halved(w["wq"][i], HEADS) * scale,
            prefix + "self_attn.k_proj.weight": halved(w["wk"][i], KV) * scale,
            prefix + "self_attn.v_proj.weight": w["wv"][i] * scale,
            prefix + "self_attn.o_proj.weight": w["wo"][i] * scale,
            prefix + "mlp.gate_proj.weight": w["w1"][i] * scale,
            prefix + "mlp.down_proj.weight": w["w2"][i] * scale,
            prefix + "mlp.up_proj.weight": w["w3"][i] * scale,
        }
    assert reader.names == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(reader.read(name), array, err_msg=name)


@pytest.mark.parametrize("write", [v0, v1, v2])
def test_a_file_with_bytes_missing_or_left_over_is_refused(tmp_path, write):
    whole = write(arrays(), tied=True)

    for damaged in (whole[:-1], whole[:300], whole + b"\0"):
        (tmp_path / "model.bin").write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"model\.bin"):
            open_llama2c(tmp_path / "model.bin")


@pytest.mark.parametrize(
    "content", [b"", b"short", bytes(1000), b"\xff" * 1000, new_header(9, True)]
)
def test_a_file_that_is_no_model_is_refused(tmp_path, content):
    (tmp_path / "x.bin").write_bytes(content)

    with pytest.raises(CheckpointError, match=r"x\.bin"):
        open_llama2c(tmp_path / "x.bin")


def write_pieces(path: Path, pieces: list[tuple[float, str]]) -> Path:
    body = b"".join(
        struct.pack("<fi", score, len(text.encode())) + text.encode() for score, text in pieces
    )
    path.write_bytes(struct.pack("<i", 27) + body)
    return path


def test_pieces_are_read_with_their_types_and_spaces(tmp_path):
    path = write_pieces(
        tmp_path / "tokenizer.bin",
        [(0, "<unk>"), (0, "\n<s>\n"), (0, "\n</s>\n"), (0, "<0x41>"), (-1.5, " thé")],
    )

    vocabulary = read_pieces(path, 5)

    assert vocabulary.pieces == ("<unk>", "<s>", "</s>", "<0x41>", "▁thé")
    assert vocabulary.scores == (0, 0, 0, 0, -1.5)
    assert vocabulary.types[3:] == (PieceType.BYTE, PieceType.NORMAL)
    assert (vocabulary.bos_id, vocabulary.eos_id, vocabulary.add_bos) == (1, 2, True)


def test_a_vocabulary_that_ends_early_is_refused(tmp_path):
    path = write_pieces(tmp_path / "tokenizer.bin", [(0, "<unk>"), (0, "a")])

    with pytest.raises(CheckpointError, match=r"piece 2 of 3"):
        read_pieces(path, 3)
