"""Images of every family, bit by bit as transformers' Pillow processors prepare them."""

import json
import math
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image as Pillow
from scenes import picture
from spaninfer_multimodal import ConfigError, TooLarge, Video, decode_image, load_processors

# It imports the processors when they are asked for: not every process that collects these tests.
transformers = pytest.importorskip("transformers", reason="is the oracle")

SIZES = [(224, 224), (100, 333), (37, 41), (28, 1680), (1, 1)]

HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
QWEN3 = {"patch_size": 16, "size": {"shortest_edge": 65536, "longest_edge": 16777216}, **HALF}


def pillow(image):
    """An image for the oracle, which takes an array of three rows for channels."""
    return Pillow.fromarray(image.pixels)


def loaded(folder, config, tower=None, shared=None):
    """Our processor from a model folder with these files."""
    (folder / "preprocessor_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps(tower or {}))
    if shared:
        (folder / "processor_config.json").write_text(json.dumps(shared))
    return load_processors(folder).vision


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "options",
    [{}, {"min_pixels": 3136, "max_pixels": 401408}, {"max_pixels": 28 * 28 * 64}, QWEN3],
    ids=["Qwen2-VL", "its budget", "a small budget", "Qwen3-VL"],
)
def test_qwen_vl(tmp_path, options, size):
    ours = loaded(tmp_path, {"image_processor_type": "Qwen2VLImageProcessorFast", **options})
    image = picture(*size)

    patches = ours.image(image)

    theirs = transformers.Qwen2VLImageProcessorPil(**options)(pillow(image), return_tensors="np")
    assert [list(patches.grid_thw)] == theirs["image_grid_thw"].tolist()
    np.testing.assert_array_equal(patches.pixels, theirs["pixel_values"])
    assert patches.num_tokens == math.prod(patches.grid_thw) // 4
    assert patches.pixels.dtype == np.float32
    assert not patches.pixels.flags.writeable


def published(folder, processors, name):
    """Our processor with the settings that a reference of onnxruntime-extensions names.

    They are a list of steps: those that say how pictures are scaled, normalised and cut.
    """
    file = json.loads((processors / name / "vision_processor.json").read_text())
    steps = [each["operation"] for each in file["processor"]["transforms"]]
    named = {step["type"]: step.get("attrs", {}) for step in steps}
    config = {
        "image_processor_type": "Qwen2VLImageProcessor",
        **{key: named["Resize"][key] for key in ("min_pixels", "max_pixels", "merge_size")},
        **{key: named["PatchImage"][key] for key in ("patch_size", "temporal_patch_size")},
        "image_mean": named["Normalize"]["mean"],
        "image_std": named["Normalize"]["std"],
        **named["Rescale"],
    }
    return loaded(folder, config)


@pytest.mark.model
def test_a_real_picture_has_the_values_of_a_published_reference(tmp_path, processors, pictures):
    image = decode_image((pictures / "ortx" / "australia.jpg").read_bytes())
    expected = np.loadtxt(processors / "qwen2.5vl" / "pixel_values_reference.txt")

    patches = published(tmp_path, processors, "qwen2.5vl").image(image)

    found = patches.pixels.flatten()[: len(expected)]
    assert len(expected) == 1000
    assert np.square(found - expected).mean() <= 1e-3  # as the reference is compared by its authors


@pytest.mark.model
def test_a_real_picture_is_cut_as_transformers_does_with_published_settings(
    tmp_path, processors, pictures
):
    image = decode_image((pictures / "ortx" / "australia.jpg").read_bytes())

    patches = published(tmp_path, processors, "qwen3vl").image(image)

    config = json.loads((tmp_path / "preprocessor_config.json").read_text())
    theirs = transformers.Qwen2VLImageProcessorPil(**config)(pillow(image), return_tensors="np")
    assert [list(patches.grid_thw)] == theirs["image_grid_thw"].tolist()
    np.testing.assert_array_equal(patches.pixels, theirs["pixel_values"])


@pytest.mark.parametrize("size", [*SIZES, (100, 260), (300, 130)])
@pytest.mark.parametrize("scanned", [False, True])
def test_gemma_3(tmp_path, size, scanned):
    options = {
        "size": {"height": 112, "width": 112}, "do_pan_and_scan": scanned or None, **HALF,
        "pan_and_scan_min_crop_size": 64, "pan_and_scan_max_num_crops": 4,
        "pan_and_scan_min_ratio_to_activate": 1.2,
    }  # fmt: skip
    ours = loaded(tmp_path, {"image_processor_type": "Gemma3ImageProcessor", **options})
    image = picture(*size)

    tiles = ours.image(image)

    theirs = transformers.Gemma3ImageProcessorPil(**options)(pillow(image), return_tensors="np")
    np.testing.assert_array_equal(tiles.pixels, theirs["pixel_values"])
    assert tiles.num_tokens == 256 * (1 + theirs["num_crops"][0])


def test_gemma_3_makes_crops_of_long_images_only(tmp_path):
    ours = loaded(
        tmp_path, {"image_processor_type": "Gemma3ImageProcessor", "do_pan_and_scan": True}
    )

    numbers = [
        len(ours.image(picture(*size)).pixels) for size in ((600, 600), (300, 900), (900, 300))
    ]

    assert numbers == [1, 4, 4]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("edge", [224, 384])
def test_siglip(tmp_path, size, edge):
    options = {"size": {"height": edge, "width": edge}, **HALF}
    config = {"image_processor_type": "SiglipImageProcessor", "resample": 3, **options}
    image = picture(*size)

    tiles = loaded(tmp_path, config, {"vision_config": {"patch_size": 16}}).image(image)

    theirs = transformers.SiglipImageProcessorPil(**options)(pillow(image), return_tensors="np")
    np.testing.assert_array_equal(tiles.pixels, theirs["pixel_values"])
    assert tiles.num_tokens == (edge // 16) ** 2


IDEFICS3 = {
    "Idefics3": {},
    "SmolVLM-256M": {
        "size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}, "resample": 1,
    },
    "beyond the limit": {
        "size": {"longest_edge": 6000}, "max_image_size": {"longest_edge": 1000},
    },
    "whole": {"do_image_splitting": False},
}  # fmt: skip
# Beyond the limit all have a longest edge of 4096 pixels: one is square, the others are thin.
THIN = [(100, 333), (37, 410), (28, 1680), (300, 90), (1, 7), (77, 1200)]


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *product(("Idefics3", "SmolVLM-256M", "whole"), [*SIZES, (300, 90), (777, 1200)]),
        *product(["beyond the limit"], [(224, 224), *THIN]),
    ],
)
def test_idefics3(tmp_path, name, size):
    options = IDEFICS3[name]
    config = {"image_processor_type": "SmolVLMImageProcessor", **options}
    image = picture(*size)

    tiles = loaded(tmp_path, config, shared={"image_seq_len": 64}).image(image)

    images = transformers.Idefics3ImageProcessorPil(return_row_col_info=True, **options)
    theirs = images(pillow(image), return_tensors="np")
    assert np.array_equal(tiles.pixels, theirs["pixel_values"][0])  # numpy's own takes seconds
    assert tiles.num_tokens == 64 * len(tiles.pixels)
    processor = object.__new__(transformers.Idefics3Processor)
    processor.image_seq_len, processor.global_image_tag = 64, "<global-img>"
    processor.image_token, processor.fake_image_token = "<image>", "<fake_token_around_image>"
    assert ("<image>" * 64).join(tiles.around) == processor.replace_image_token(theirs, 0)


@pytest.mark.parametrize("size", [(364, 364), (300, 90), (777, 1200)])
def test_aya_vision(tmp_path, size):
    options = {"size": {"height": 364, "width": 364}, **HALF}
    config = {"image_processor_type": "GotOcr2ImageProcessor", **options}
    shared = {"processor_class": "AyaVisionProcessor", "patch_size": 14, "downsample_factor": 2}
    image = picture(*size)

    tiles = loaded(tmp_path, config, shared=shared).image(image)

    theirs = transformers.GotOcr2ImageProcessorPil(crop_to_patches=True, **options)(
        pillow(image), return_tensors="np"
    )
    np.testing.assert_array_equal(tiles.pixels, theirs["pixel_values"])
    processor = object.__new__(transformers.AyaVisionProcessor)
    processor.patch_size, processor.img_size, processor.img_patch_token = 28, 364, "<patch>"
    processor.start_of_img_token, processor.end_of_img_token = "<|START_OF_IMG|>", "<|END_OF_IMG|>"
    processor.tile_token, processor.tile_global_token = "TILE", "TILE_GLOBAL"
    written = ("<patch>" * (tiles.num_tokens // len(tiles.pixels))).join(tiles.around)
    assert written == processor.replace_image_token(theirs, 0)


@pytest.mark.parametrize("size", [*SIZES, (300, 90), (777, 1200), (900, 900)])
@pytest.mark.parametrize(
    "options",
    [{}, {"max_patches": 1}, {"min_patches": 3, "max_patches": 6}],
    ids=["InternVL3", "whole", "three at least"],
)
def test_internvl(tmp_path, size, options):
    options = {"size": {"height": 448, "width": 448}, **options}
    config = {"image_processor_type": "GotOcr2ImageProcessorFast", **options}
    image = picture(*size)

    tiles = loaded(tmp_path, config).image(image)

    theirs = transformers.GotOcr2ImageProcessorPil(crop_to_patches=True, **options)(
        pillow(image), return_tensors="np"
    )
    np.testing.assert_array_equal(tiles.pixels, theirs["pixel_values"])
    assert tiles.num_tokens == 256 * theirs["num_patches"][0]
    processor = object.__new__(transformers.InternVLProcessor)
    processor.image_seq_length, processor.image_token = 256, "<IMG_CONTEXT>"
    processor.start_image_token, processor.end_image_token = "<img>", "</img>"
    written = ("<IMG_CONTEXT>" * tiles.num_tokens).join(tiles.around)
    assert written == processor.replace_image_token(theirs, 0)


@pytest.mark.parametrize(("strategy", "wanted"), [("default", 576), ("full", 577)])
def test_a_model_says_whether_clip_s_class_is_a_token(tmp_path, strategy, wanted):
    size = {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}
    model = {"vision_config": {"patch_size": 14}, "vision_feature_select_strategy": strategy}

    ours = loaded(tmp_path, {"image_processor_type": "CLIPImageProcessor", **size}, model)

    assert ours.image(picture(60, 40)).num_tokens == wanted


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "options",
    [{}, {"size": {"shortest_edge": 100}}, {"size": 224, "crop_size": 336}],
    ids=["as it is", "crops beyond the image", "old spelling"],
)
def test_clip(tmp_path, size, options):
    if options.get("size") == 224:
        theirs = transformers.CLIPImageProcessorPil(
            size={"height": 224, "width": 224}, crop_size={"height": 336, "width": 336}
        )
    else:
        theirs = transformers.CLIPImageProcessorPil(**options)
    config = {"feature_extractor_type": "CLIPFeatureExtractor", "image_mean": None, **options}
    image = picture(*size)

    tiles = loaded(tmp_path, config, {"vision_config": {"patch_size": 14}}).image(image)

    expected = theirs(pillow(image), return_tensors="np")["pixel_values"]
    np.testing.assert_array_equal(tiles.pixels, expected)
    assert tiles.num_tokens == (expected.shape[-1] // 14) ** 2 + 1


PIXTRAL = {"image_processor_type": "PixtralImageProcessorFast", "size": {"longest_edge": 1540}}
LINES = {"patch_size": 14, "spatial_merge_size": 2}


@pytest.mark.parametrize(
    "size", [*SIZES, (1540, 1540), (1600, 700), (700, 3000), (1, 500), (1541, 6), (29, 28)]
)
@pytest.mark.parametrize(
    ("options", "shared"),
    [
        ({}, LINES),
        ({"patch_size": {"height": 16, "width": 16}, "size": {"longest_edge": 1024}}, {}),
        ({"size": {"height": 300, "width": 500}, "resample": 2}, LINES),
    ],
    ids=["Mistral Small 3.1", "Pixtral", "two limits"],
)
def test_pixtral(tmp_path, options, shared, size):
    ours = loaded(tmp_path, {**PIXTRAL, **options}, shared=shared)
    image, side = picture(*size), 28 if shared else 16

    patches = ours.image(image)

    processor = transformers.PixtralImageProcessorPil(
        **{"size": PIXTRAL["size"], **options, "patch_size": side}
    )
    theirs = processor(pillow(image), return_tensors="np")
    height, width = theirs["image_sizes"][0]
    np.testing.assert_array_equal(whole_picture(patches, ours), theirs["pixel_values"][0])
    assert patches.grid_thw == (1, height // ours.patch, width // ours.patch)
    lines = ("[IMG]" * (width // side),) * (height // side)
    runs = "[IMG]" * (patches.num_tokens // (len(patches.around) - 1))
    assert runs.join(patches.around) == "[IMG_BREAK]".join(lines) + "[IMG_END]"


def whole_picture(patches, form):
    """The picture [3 height width] that patches are those of, token by token."""
    _, rows, columns = patches.grid_thw
    sides = (rows // form.merge, columns // form.merge, form.merge, form.merge)
    cells = patches.pixels.reshape(*sides, 3, form.patch, form.patch)
    picture = cells.transpose(4, 0, 2, 5, 1, 3, 6)
    return picture.reshape(3, rows * form.patch, columns * form.patch)


def test_a_picture_too_thin_for_pixtral_is_refused(tmp_path):
    ours = loaded(tmp_path, PIXTRAL, shared=LINES)

    with pytest.raises(TooLarge, match="3000 x 1: scaled to 1540 x 1540, its short side is less"):
        ours.image(picture(1, 3000))


def test_tokens_between_lines_are_those_that_the_folder_names(tmp_path):
    named = {**LINES, "image_break_token": "<br>", "image_end_token": "<end>"}
    ours = loaded(tmp_path, PIXTRAL, shared=named)

    assert ours.image(picture(56, 28)).around == ("", "<br>", "<end>")


LLAMA4 = {"image_processor_type": "Llama4ImageProcessorFast", **HALF}
FITTED = {  # rows and columns of tiles, and the part of them that shows the picture: what
    # transformers 5.23 makes with torchvision 0.28, without which it cannot be imported
    "as published": ({}, {
        (336, 336): (1, 1, 336, 336), (100, 333): (1, 1, 100, 336), (37, 41): (1, 1, 303, 336),
        (1, 1): (1, 1, 336, 336), (28, 1680): (1, 5, 28, 1680), (1, 500): (1, 2, 1, 500),
        (500, 1): (2, 1, 500, 1), (700, 1000): (3, 3, 700, 1000), (3000, 200): (9, 1, 3000, 200),
        (337, 336): (2, 1, 337, 336), (335, 1009): (1, 4, 335, 1009),
        (640, 480): (2, 2, 640, 480), (211, 997): (1, 3, 211, 997)}),
    "scaled to the canvas": ({"resize_to_max_canvas": True, "max_patches": 4}, {
        (336, 336): (2, 2, 672, 672), (100, 333): (1, 4, 336, 1118), (37, 41): (2, 2, 606, 672),
        (1, 1): (2, 2, 672, 672), (28, 1680): (1, 4, 22, 1344), (1, 500): (1, 4, 2, 1344),
        (500, 1): (4, 1, 1344, 2), (700, 1000): (2, 2, 470, 672), (3000, 200): (4, 1, 1344, 89),
        (337, 336): (2, 2, 672, 670), (335, 1009): (1, 4, 336, 1012),
        (640, 480): (2, 2, 672, 503), (211, 997): (1, 4, 284, 1344)}),
    "small tiles": ({"size": {"height": 56, "width": 56}, "max_patches": 6}, {
        (336, 336): (2, 2, 112, 112), (100, 333): (1, 4, 56, 186), (37, 41): (1, 1, 50, 56),
        (1, 1): (1, 1, 56, 56), (28, 1680): (1, 6, 5, 336), (1, 500): (1, 6, 1, 336),
        (500, 1): (6, 1, 336, 1), (700, 1000): (2, 3, 112, 160), (3000, 200): (6, 1, 336, 22),
        (337, 336): (3, 2, 112, 112), (335, 1009): (1, 4, 56, 168),
        (640, 480): (3, 2, 149, 112), (211, 997): (1, 5, 56, 264)}),
}  # fmt: skip
WORTH = 2.1 / 127.5
"""A grey level apart, as torchvision and Pillow resize, and what rounding to bfloat16 adds."""


@pytest.mark.parametrize("name", FITTED)
def test_llama_4(tmp_path, name):
    torch = pytest.importorskip("torch")
    options, expected = FITTED[name]
    ours = loaded(tmp_path, {**LLAMA4, **options})

    for size, (rows, columns, height, width) in expected.items():
        image, side = picture(*size), ours.tile
        tiles = ours.image(image)

        seen = torch.zeros(3, rows * side, columns * side, dtype=torch.uint8)
        seen[:, :height, :width] = scaled_by_torch(image, (height, width))
        parts = seen.reshape(3, rows, side, columns, side).permute(1, 3, 0, 2, 4).flatten(0, 1)
        if rows * columns > 1:
            parts = torch.cat([parts, scaled_by_torch(image, (side, side))[None]])
        wanted = (parts.bfloat16() * (1 / 255) - 0.5) / 0.5
        np.testing.assert_allclose(tiles.pixels, wanted.float().numpy(), rtol=0, atol=WORTH)
        assert tiles.num_tokens == len(parts) * ours.tokens_per_tile
        pads = "P" * (tiles.num_tokens // len(parts))
        assert pads.join(tiles.around) == llama_4_text(rows, columns, pads)


def scaled_by_torch(image, size):
    """A picture [3 height width] in bytes: what torchvision calls for tensors."""
    torch = pytest.importorskip("torch")
    pixels = torch.from_numpy(image.pixels.copy()).movedim(-1, 0)[None]
    return torch.nn.functional.interpolate(pixels, size, mode="bilinear", antialias=True)[0]


def llama_4_text(rows, columns, pads):
    """What its processor writes of a picture: lines of tiles, and the whole picture."""
    line = "<|tile_x_separator|>".join([pads] * columns) + "<|tile_y_separator|>"
    lines = line * rows if rows * columns > 1 else ""
    return f"<|image_start|>{lines}<|image|>{pads}<|image_end|>"


def test_llama_4_rounds_what_bytes_stand_for_as_it_is_computed_in_bfloat16(tmp_path):
    torch = pytest.importorskip("torch")
    uneven = {"image_mean": [0.48, 0.45, 0.4], "image_std": [0.27, 0.26, 0.28]}
    ours = loaded(tmp_path, {**LLAMA4, **uneven})

    levels = ours.normalisation.levels()

    mean, std = (torch.tensor(each, dtype=torch.bfloat16)[:, None] for each in uneven.values())
    wanted = (torch.arange(256).bfloat16() * (1 / 255)).sub(mean).div(std)
    np.testing.assert_array_equal(levels, wanted.float().numpy())


@pytest.mark.parametrize("size", [(336, 336), (100, 333), (1, 1), (700, 300), (2000, 1500)])
def test_llava_next(tmp_path, size):
    options = {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}
    config = {"image_processor_type": "LlavaNextImageProcessor", **options}
    model = {"vision_config": {"patch_size": 14}, "vision_feature_select_strategy": "default"}
    image = picture(*size)

    tiles = loaded(tmp_path, config, model).image(image)

    images = transformers.LlavaNextImageProcessorPil(**options)
    theirs = images(pillow(image), return_tensors="np")
    np.testing.assert_array_equal(tiles.pixels, theirs["pixel_values"][0])
    processor = object.__new__(transformers.LlavaNextProcessor)
    processor.image_processor, processor.patch_size = images, 14
    processor.image_token, processor.num_additional_image_tokens = "<image>", 1
    processor.vision_feature_select_strategy = "default"
    assert "<image>" * tiles.num_tokens == processor.replace_image_token(theirs, 0)


ONEVISION = {"image_processor_type": "LlavaOnevisionImageProcessor", **HALF}


@pytest.mark.parametrize("size", [(384, 384), (100, 333), (1, 1), (700, 300)])
def test_llava_onevision(tmp_path, size):
    pinpoints = [[384, 384], [384, 768], [768, 384], [768, 768], [384, 1536]]
    config = {**ONEVISION, "image_grid_pinpoints": pinpoints}
    ours = loaded(tmp_path, config)
    image = picture(*size)

    tiles = ours.image(image)

    processor = transformers.LlavaOnevisionImageProcessorPil(image_grid_pinpoints=pinpoints, **HALF)
    theirs = processor(pillow(image), return_tensors="np")
    np.testing.assert_array_equal(tiles.pixels, theirs["pixel_values"][0])
    assert [list(tiles.size)] == theirs["image_sizes"].tolist()


@pytest.mark.parametrize(
    "size", [*SIZES, (384, 384), (1500, 400), (2000, 2300), (768, 1920), (5000, 100)]
)
def test_llava_onevision_counts_tokens_as_its_processor_does(tmp_path, size):
    ours = loaded(tmp_path, ONEVISION, shared={"num_image_tokens": 729})

    class Counting(transformers.LlavaOnevisionProcessor):
        """Their arithmetic, without the tokenizer that the rest of the class needs."""

        def __init__(self):
            self.image_processor = transformers.LlavaOnevisionImageProcessorPil()
            self.num_image_tokens, self.vision_aspect_ratio = 729, "anyres_max_9"

    tiles = ours.image(picture(*size))

    assert tiles.num_tokens == Counting()._get_number_of_features(*size, 384, 384)


@pytest.mark.parametrize("size", [(384, 384), (100, 333), (700, 300), (1100, 750), (60, 900)])
def test_llava_onevision_mixes_features_as_its_model_packs_them(tmp_path, size):
    torch = pytest.importorskip("torch")
    onevision = pytest.importorskip("transformers.models.llava_onevision.modeling_llava_onevision")
    config = onevision.LlavaOnevisionConfig(vision_config={
        "model_type": "siglip_vision_model", "image_size": 384, "patch_size": 48})  # fmt: skip
    shared = {"num_image_tokens": 64, "vision_aspect_ratio": "anyres_max_2"}
    tiles = loaded(tmp_path, ONEVISION, shared=shared).image(picture(*size))
    features = torch.randn(len(tiles.pixels), 64, 5, generator=torch.Generator().manual_seed(1))
    end = torch.arange(5.0)

    (packed,), _ = onevision.LlavaOnevisionModel.pack_image_features(
        SimpleNamespace(config=config), [features], [size], end, "anyres_max_2"
    )

    mixed = mixed_of(tiles.mixture, torch.cat([features.flatten(0, 1), end[None]]).numpy())
    np.testing.assert_allclose(mixed, packed.numpy(), atol=1e-5)


def test_llava_onevision_halves_the_sides_of_frames(tmp_path):
    torch = pytest.importorskip("torch")
    onevision = pytest.importorskip("transformers.models.llava_onevision.modeling_llava_onevision")
    frames = np.stack([picture(40, 60, seed).pixels for seed in range(3)])
    video = Video(frames, (0, 10, 20), 10.0, 30)
    features = torch.randn(3, 49, 5, generator=torch.Generator().manual_seed(1))

    tiles = loaded(tmp_path, ONEVISION, shared={"num_image_tokens": 49}).video(video)

    model = SimpleNamespace(config=SimpleNamespace(
        vision_config=SimpleNamespace(image_size=384, patch_size=54)))  # fmt: skip
    pooled = onevision.LlavaOnevisionModel.apply_pooling(model, features).flatten(0, 1)
    rows = torch.cat([features.flatten(0, 1), torch.ones(1, 5)])
    mixed = mixed_of(tiles.mixture, rows.numpy())
    assert tiles.pixels.shape == (3, 3, 384, 384)
    assert tiles.num_tokens == 3 * 16 + 1
    np.testing.assert_allclose(mixed, torch.cat([pooled, torch.ones(1, 5)]).numpy(), atol=1e-5)


def mixed_of(mixture, rows):
    return (rows[mixture.rows] * mixture.weights[..., None]).sum(1)


def test_a_picture_of_no_width_is_refused(tmp_path):
    ours = loaded(tmp_path, {**ONEVISION, "image_grid_pinpoints": [[768, 768]]})

    with pytest.raises(TooLarge, match="1 x 3000: scaled to a tile, its short side is less"):
        ours.image(picture(3000, 1))


@pytest.mark.parametrize("size", [(100, 333), (300, 41), (50, 50)])
def test_llava_onevision_pads_one_image_of_several_to_a_square(tmp_path, size):
    ours, image = loaded(tmp_path, ONEVISION), picture(*size)

    tiles = ours.image_of_several(image)

    both = [[pillow(image), pillow(image)]]
    theirs = transformers.LlavaOnevisionImageProcessorPil(**HALF)(both, return_tensors="np")
    np.testing.assert_array_equal(tiles.pixels, theirs["pixel_values"][0])
    assert tiles.num_tokens == 730


def test_an_image_too_long_for_qwen_vl_is_refused(tmp_path):
    ours = loaded(tmp_path, {"image_processor_type": "Qwen2VLImageProcessor"})

    with pytest.raises(TooLarge, match="201 x 1; no side may be more than 200 times the other"):
        ours.image(picture(1, 201))


def test_equal_images_have_equal_digests_and_settings_count(tmp_path):
    ours = loaded(tmp_path, {"image_processor_type": "Qwen2VLImageProcessor"})
    small = loaded(tmp_path, {"image_processor_type": "Qwen2VLImageProcessor", "max_pixels": 50000})
    image, same, other = picture(40, 60), picture(40, 60), picture(40, 60, seed=1)

    assert ours.image(image).digest == ours.image(same).digest
    assert len({p.image(i).digest for p in (ours, small) for i in (image, other)}) == 4


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"image_processor_type": "Nonsense"}, "'Nonsense'; implemented are CLIPFeature"),
        ({"do_resize": False}, "do_resize is False; only True or None"),
        ({"image_mean": [0.5]}, "image_mean is .0.5.; it must be a list of three"),
        ({"patch_size": 0}, "patch_size is 0; it must be a number above 0"),
        ({"patch_size": 1.5}, "patch_size is 1.5; it must be an integer"),
        ({"patch_size": True}, "patch_size is True"),
        ({"resample": 9}, "resample is 9; Pillow's filters are 0 to 5"),
        ({"size": "large"}, "size is 'large'"),
        ({"image_processor_type": "SiglipImageProcessor"}, "patch_size is missing: .* config.json"),
        ({"image_processor_type": "Gemma3ImageProcessor", "size": {"shortest_edge": 9}}, "height"),
        ({**PIXTRAL, "patch_size": {"height": 16, "width": 14}}, "only squares are implemented"),
        ({**PIXTRAL, "size": {"height": 99}}, "longest_edge, or height and width"),
        ({**PIXTRAL, "spatial_merge_size": 0}, "spatial_merge_size is 0; it must be a number"),
        ({**PIXTRAL, "image_end_token": 13}, "image_end_token is 13; it must be a text"),
        ({**PIXTRAL, "do_center_crop": True}, "do_center_crop is True; only False or None"),
        ({**LLAMA4, "size": {"height": 56, "width": 57}}, "only a square of height and width"),
        ({**LLAMA4, "max_patches": 0}, "max_patches is 0; it must be a number above 0"),
        ({**LLAMA4, "max_patches": 10**9}, "max_patches is 1000000000; at most 256"),
        ({**LLAMA4, "pixel_shuffle_ratio": 1e-200}, "only 0.5 or 1 or None is implemented"),
        ({**LLAMA4, "resize_to_max_canvas": 3}, "resize_to_max_canvas is 3; it must be true or"),
        ({**ONEVISION, "crop_size": 384}, "crop_size is 384; only None"),
        ({**ONEVISION, "vision_aspect_ratio": "pad"}, "only anyres_max_N"),
        ({**ONEVISION, "image_grid_pinpoints": [[100, 384]]}, "no multiples of 384"),
    ],
)
def test_a_configuration_that_is_not_implemented_is_refused(tmp_path, config, message):
    with pytest.raises(ConfigError, match=message):
        loaded(tmp_path, {"image_processor_type": "Qwen2VLImageProcessor", **config})


def test_a_folder_without_a_configuration_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"has no preprocessor_config\.json or"):
        load_processors(tmp_path)

    (tmp_path / "preprocessor_config.json").write_text("{")
    with pytest.raises(ConfigError, match="is no JSON"):
        load_processors(tmp_path)


def test_newer_folders_have_everything_in_one_file(tmp_path):
    one = loaded(tmp_path, {"image_processor_type": "Qwen2VLImageProcessor", "max_pixels": 50000})
    (tmp_path / "preprocessor_config.json").unlink()
    image = {"image_processor_type": "Qwen2VLImageProcessor", "size": {"longest_edge": 50000}}
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": image}))

    assert load_processors(tmp_path).vision.images == one.images
