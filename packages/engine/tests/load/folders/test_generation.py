import pytest
from spaninfer_engine.errors import CheckpointError
from spaninfer_engine.load.folders.generation import end_ids, sampling_defaults
from spaninfer_engine.request.request import SamplingParams


def test_sampling_values_become_fields_of_the_sampling_params():
    stated = {
        "do_sample": True,
        "temperature": 0.5,
        "top_k": 40,
        "top_p": 0.7,
        "repetition_penalty": 1.1,
        "no_repeat_ngram_size": 3,
        "max_new_tokens": 512,
        "max_length": 20,
        "typical_p": None,
        "bos_token_id": 1,
    }

    defaults = sampling_defaults(stated)

    assert defaults == {
        "temperature": 0.5,
        "top_k": 40,
        "top_p": 0.7,
        "repetition_penalty": 1.1,
        "no_repeat_ngram": 3,
        "max_tokens": 512,
    }
    SamplingParams(**defaults)


@pytest.mark.parametrize(
    ("stated", "meant"),
    [
        ({"top_k": -1}, {"top_k": 0}),
        ({"top_k": 50.0}, {"top_k": 50}),
        ({"no_repeat_ngram_size": 3.0}, {"no_repeat_ngram": 3}),
        ({"top_p": 0}, {"top_k": 1}),
        ({"top_p": 0.0, "top_k": 40, "temperature": 0.5}, {"top_k": 1, "temperature": 0.5}),
        ({"temperature": 1}, {"temperature": 1}),
    ],
)
def test_values_in_the_words_of_others_keep_their_meaning(stated, meant):
    assert sampling_defaults(stated) == meant
    assert SamplingParams(**sampling_defaults(stated)) == SamplingParams(**meant)


def test_a_model_that_does_not_sample_is_greedy():
    assert sampling_defaults({"do_sample": False, "temperature": 0.7}) == {"temperature": 0.0}


def test_end_ids_are_united_over_numbers_and_lists():
    stated = [{"eos_token_id": 2}, {"eos_token_id": [5, 7]}, {"eos_token_id": None}, {}]
    found = end_ids(dict(zip("abcd", stated, strict=True)))

    assert found == {2, 5, 7}


@pytest.mark.parametrize("value", ["2", ["2"], [[2]], [2, None], True, 2.0, {"a": 2}])
def test_what_is_no_id_is_refused_with_its_file_and_what_is_allowed(value):
    with pytest.raises(CheckpointError) as refused:
        end_ids({"m: config.json": {"eos_token_id": 2}, "m: generation": {"eos_token_id": value}})

    assert str(refused.value).startswith(f"m: generation: eos_token_id is {value!r}; allowed is")
