import numpy as np
from spaninfer_engine.ops.rotary import Rotary
from spaninfer_engine.spec.attention_nodes import Rope
from spaninfer_engine.spec.frequencies import Frequencies


def _places(*positions: int) -> np.ndarray:
    return np.array([positions], np.int32)


def _at(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def test_angles_are_positions_times_frequencies():
    plain = Frequencies("default", dim=4, theta=100.0, max_len=64, original_len=64)

    cos, sin = Rotary(Rope("half", plain)).angles(_places(0, 3), _at(0, 3), _at(0, 0))

    np.testing.assert_allclose(cos, np.cos([[0, 0], [3, 0.3]]), rtol=1e-6)
    np.testing.assert_allclose(sin, np.sin([[0, 0], [3, 0.3]]), rtol=1e-6)
    assert cos.dtype == np.float32


def test_where_frequencies_depend_on_the_length_each_row_has_its_own():
    long = Frequencies(
        "longrope",
        dim=4,
        theta=100.0,
        max_len=64,
        original_len=8,
        attention_factor=2.0,
        short_factors=(1.0, 1.0),
        long_factors=(1.0, 10.0),
    )

    positions, planned = _at(3, 3, 8), _at(8, 9, 0)
    sin = Rotary(Rope("half", long)).angles(_places(3, 3, 8), positions, planned).sin

    angles = [[3, 0.3], [3, 0.03], [8, 0.08]]
    np.testing.assert_allclose(sin, 2 * np.sin(angles), rtol=1e-6)


def test_frequencies_of_the_prompts_length_stay_when_the_request_outgrows_it():
    fixed = Frequencies("ntk_prompt", dim=4, theta=100.0, max_len=64, original_len=8)
    rotary = Rotary(Rope("half", fixed))

    short, short_later, long = rotary.angles(_places(3, 3, 3), _at(3, 20, 3), _at(8, 8, 9)).sin

    np.testing.assert_array_equal(short, short_later)
    np.testing.assert_allclose(short, np.sin([3, 0.3]), rtol=1e-6)
    np.testing.assert_allclose(long, np.sin([3, 3 / (100 * 3**2) ** 0.5]), rtol=1e-6)


def test_each_section_of_frequencies_reads_its_own_axis():
    plain = Frequencies("default", dim=6, theta=1.0, max_len=64, original_len=64)
    rope = Rope("half", plain, sections=(1, 1, 1))
    places = np.array([[5], [6], [7]], np.int32)

    rotary = Rotary(rope)
    sin = rotary.angles(places, _at(7), _at(0)).sin

    assert rotary.num_axes == 3
    np.testing.assert_allclose(sin, np.sin([[5.0, 6.0, 7.0]]), rtol=1e-6)
