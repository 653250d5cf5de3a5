import pytest
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.sizes import parse_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("1048576", 1048576),
        ("17B", 17),
        ("8K", 8_000),
        ("8KiB", 8_192),
        ("512MiB", 536_870_912),
        ("2gb", 2_000_000_000),
        ("1.5 GiB", 1_610_612_736),
        ("  3 M ", 3_000_000),
        ("2TiB", 2_199_023_255_552),
        ("2T", 2_000_000_000_000),
    ],
)
def test_sizes_are_read_as_people_write_them(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["1", "8", " 24 ", "512", "1023"])
def test_a_small_number_without_a_unit_is_asked_for_it(text):
    with pytest.raises(ConfigError, match=f"has no unit; write for example {text.strip()}GiB"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e9", "1,5G", "8PiB", "8 G i B", "0x10", "²"])
def test_anything_else_is_refused_with_an_example(text):
    with pytest.raises(ConfigError) as caught:
        parse_bytes(text)

    assert repr(text) in str(caught.value)
    assert "512MiB" in str(caught.value)
    assert "KiB, MiB, GiB, TiB" in str(caught.value)
