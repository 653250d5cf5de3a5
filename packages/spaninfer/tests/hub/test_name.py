"""Names of models on a hub: a table."""

import pytest
from spaninfer.hub import HubName
from spaninfer_engine import ConfigError


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Qwen/Qwen3-0.6B", HubName("Qwen/Qwen3-0.6B")),
        ("org/name@v1", HubName("org/name", "v1")),
        ("org/name@refs/pr/3", HubName("org/name", "refs/pr/3")),
        ("org/name:Q4_K_M", HubName("org/name", tag="Q4_K_M")),
        ("org/name@v1:Q8_0", HubName("org/name", "v1", "Q8_0")),
    ],
)
def test_a_name_is_parsed_and_spelled_the_same(text, name):
    assert HubName.parse(text) == name
    assert str(name) == text


@pytest.mark.parametrize(
    "text",
    ["demo", "gpt2", "./org/name", "../name", "/org/name", "a/b/c", "org/", "org/name@", "org/.x",
     "org/name:", "C:\\models\\x", "models/x.gguf extra", ""],
)  # fmt: skip
def test_what_has_another_form_is_no_name(text):
    assert HubName.parse(text) is None
    with pytest.raises(ConfigError, match=r"ORG/NAME, with @REVISION"):
        HubName.of(text)
