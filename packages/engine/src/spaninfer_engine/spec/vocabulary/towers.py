"""The vocabulary's sections about media: tokens that stand for them, and towers."""

from __future__ import annotations

from spaninfer_engine.spec.language.typed import (
    BASE,
    EPSILON,
    FLAG,
    INTEGERS,
    MAX_INDEX,
    SIZE,
    TEXT,
    TEXTS,
    Type,
    choice,
    number,
    optional,
    side,
    size,
)
from spaninfer_engine.spec.vocabulary.words import REQUIRED, Section, Word

MAX_TOWER_LAYERS = 1_000
MAX_PIXELS = 4_096  # of a patch's side, and of a window's
MAX_TILE = 16_384  # pixels of a side, and rows
_TOKEN = optional(size(0, MAX_INDEX))
_NORM = choice("rms", "layer", aliases={"rms_norm": "rms", "layer_norm": "layer"})

MEDIA = Section(
    "Tokens of a prompt that stand for media. Keys of config.json are those of the whole file.",
    {
        "image_token": Word(_TOKEN, "null", "id that image rows replace"),
        "video_token": Word(_TOKEN, "null", "id that video rows replace"),
        "audio_token": Word(_TOKEN, "null", "id that audio rows replace"),
        "start_token": Word(_TOKEN, "null", "id in front of an image or a video"),
        "end_token": Word(_TOKEN, "null", "id behind it"),
        "seconds_per_t": Word(optional(number(1e-6, 1e6)), "null", "positions per second of video"),
        "frames_apart": Word(
            FLAG, False, "each frame of a video stands alone, behind its time in seconds"
        ),
        "bidirectional": Word(
            FLAG, False, "tokens of an image see each other, not just those before them"
        ),
        "replaces_marks": Word(
            FLAG, False, "rows of a clip replace start_token and end_token, too"
        ),
        "written": Word(TEXT, "", "the template's text for an image; empty: that of image_token"),
        "around": Word(
            TEXT, "", "text in front of start_token and behind end_token, which the template omits"
        ),
    },
)

EXPECT = Section(
    "Keys of the tower's own config and the values that are implemented; an absent or null key is "
    "fine.",
    {},
    is_open=True,
)


def _tower(activation: Type) -> dict[str, Word]:
    return {
        "config": Word(
            TEXT, REQUIRED, "config key of the tower's own config; its keys are meant here"
        ),
        "ignore": Word(TEXTS, [], "keys of it that do not matter"),
        "beside": Word(TEXTS, [], "keys of the whole config.json that are read as if in it"),
        "layers": Word(size(most=MAX_TOWER_LAYERS), REQUIRED, "how many layers"),
        "hidden": Word(SIZE, REQUIRED, "channels"),
        "heads": Word(SIZE, REQUIRED, "attention heads"),
        "ffn": Word(SIZE, REQUIRED, "inner channels of the MLP"),
        "norm": Word(_NORM, "layer", "norm of the tower"),
        "eps": Word(EPSILON, 1e-6, "added to the variance"),
        "act": Word(activation, REQUIRED, "activation"),
        "bias": Word(FLAG, True, "projections of its layers have biases"),
    }


def vision(activation: Type) -> Section:
    """Return the section of vision towers."""
    return Section(
        "The vision tower.",
        {
            **_tower(activation),
            "out": Word(
                optional(SIZE), "null", "channels of its rows; null: those of the text model"
            ),
            "output_layer": Word(
                size(-MAX_TOWER_LAYERS, MAX_TOWER_LAYERS),
                -1,
                "the layer behind which it ends, counted from 1, or from -1 backwards; those "
                "behind it are not used",
            ),
            "videos": Word(FLAG, True, "it sees videos, too"),
            "tile": Word(optional(side(MAX_TILE)), "null", "pixels of the side of every picture"),
            "tile_tokens": Word(
                optional(size(most=MAX_TILE)), "null", "rows of a tile, whose number gives `merge`"
            ),
            "channels": Word(size(most=64), 3, "numbers of a pixel"),
            "patch": Word(side(MAX_PIXELS), REQUIRED, "pixels of a patch's side"),
            "patch_bias": Word(FLAG, False, "the patch embedding has a bias"),
            "patch_flat": Word(FLAG, False, "it is stored as a matrix"),
            "temporal": Word(size(most=64), 1, "frames of a patch"),
            "merge": Word(size(most=64), 1, "patches of a row's side"),
            "merger": Word(
                choice("mlp", "mean", "narrow", "gated", "linear", "join", "shuffle", "resampler"),
                "mlp",
                "an MLP of a row's patches side by side; a norm and a projection of their mean; an "
                "MLP of them side by side that is as wide as its rows, behind a norm if one is "
                "named; the same with a SiLU gate, the second half of its first projection; a "
                "projection of them side by side; a norm of each patch, a projection of a row's to "
                "one, and an MLP; an MLP of a row's patches side by side, its activation, and a "
                "projection; learned queries that read all patches of a picture",
            ),
            "merger_eps": Word(
                optional(EPSILON), "null", "added to the variance of the merger's norm; null: `eps`"
            ),
            "merger_inner": Word(
                optional(SIZE),
                "null",
                "narrow, gated: channels behind the first projection; shuffle: inside the MLP",
            ),
            "merger_out": Word(optional(SIZE), "null", "shuffle: channels behind the MLP"),
            "merger_bias": Word(FLAG, True, "projections of the merger have biases"),
            "queries": Word(
                optional(size(most=MAX_TILE)), "null", "queries of a resampler, a square number"
            ),
            "merger_heads": Word(optional(SIZE), "null", "attention heads of a resampler"),
            "qkv": Word(choice("concat", "grouped", "split"), "concat", "how they are stored"),
            "qkv_bias": Word(
                optional(FLAG), "null", "projections to them have biases; null: as `bias`"
            ),
            "qk_norm": Word(FLAG, False, "all queries, and all keys, have a root-mean-square norm"),
            "qk_norm_eps": Word(optional(EPSILON), "null", "added to their variance; null: `eps`"),
            "theta": Word(
                optional(BASE), 10000.0, "base of the rotary positions by row, then by column"
            ),
            "theta_axes": Word(
                choice("rows", "turns", "columns"),
                "rows",
                "rows have the first frequencies and columns the same behind; they take turns "
                "along all; columns have the first",
            ),
            "theta_style": Word(
                choice("half", "interleaved"), "half", "which channels make a pair"
            ),
            "pos_batched": Word(
                FLAG, False, "positions and class token are stored as those of a batch of one"
            ),
            "class_first": Word(
                FLAG, False, "the class token's position is the table's first, not its last"
            ),
            "pos_table": Word(optional(SIZE), "null", "rows of a learned square table"),
            "pos_stretch": Word(
                choice("bilinear", "bicubic"),
                "bilinear",
                "how a table is interpolated for pictures of other sizes: corner on corner, or "
                "edge on edge",
            ),
            "mlp": Word(choice("gated", "plain"), "plain", "kind of MLP"),
            "window": Word(optional(size(most=MAX_PIXELS)), "null", "pixels of a window's side"),
            "full_layers": Word(INTEGERS, [], "layers without the window"),
            "deepstack": Word(INTEGERS, [], "layers whose output joins the text's first layers"),
        },
    )


def audio(activation: Type) -> Section:
    """Return the section of audio towers."""
    return Section(
        "The audio tower.",
        {
            **_tower(activation),
            "mels": Word(size(most=4_096), REQUIRED, "bands of the spectrogram"),
            "rows": Word(size(most=1_000_000), REQUIRED, "rows that it has positions for"),
            "pool": Word(size(most=64), 1, "rows averaged to one, before the final norm"),
        },
    )
