"""The bundled model in the engine against transformers' Qwen3-VL."""

import pytest
from spaninfer_demo import path

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("spaninfer", reason="scenes are drawn by the package spaninfer")
pytest.importorskip("spaninfer_multimodal")

from spaninfer.bench.accuracy import messages_of  # noqa: E402
from spaninfer.bench.pictures.exam import questions  # noqa: E402
from spaninfer_engine import Engine, SamplingParams  # noqa: E402

SKILLS = ("colour", "count", "number", "motion")


@pytest.fixture(scope="module")
def model():
    named = "Qwen3VLForConditionalGeneration"
    return getattr(transformers, named).from_pretrained(path(), dtype=torch.float32)


def likeliest(model, prompt, told):
    """Return what transformers' model finds likeliest in the place of each token that was told,
    over the engine's ids and patches.
    """
    (item,) = prompt.media.items
    kind, made = item.input.kind, item.input
    pixels = {"image": "pixel_values", "video": "pixel_values_videos"}[kind]
    pad = getattr(model.config, f"{kind}_token_id")
    mark = {"image": 1, "video": 2}[kind]
    ids = [*prompt, *told[:-1]]
    with torch.no_grad():
        logits = model(
            torch.tensor([ids]),
            mm_token_type_ids=torch.tensor([[mark * (each == pad) for each in ids]]),
            **{
                pixels: torch.from_numpy(np.array(made.numbers)),
                f"{kind}_grid_thw": torch.tensor([made.grid_thw]),
            },
        ).logits[0]
    return logits[len(prompt) - 1 :].argmax(-1).tolist()


def test_answers_about_pictures_and_clips_are_those_of_transformers(model):
    sampling = SamplingParams(temperature=0.0, max_tokens=16)
    with Engine(path(), backend="cpu", dtype="float32", memory="16MiB") as engine:
        for skill in SKILLS:
            (question,) = questions(skill, 1)
            messages = messages_of(question)
            told = list(engine.chat(messages, sampling).token_ids)

            assert told == likeliest(model, engine.encode_chat(messages), told)
