import pytest
from spaninfer_serving.middleware.targets import origin_form


def scope_of(target, host="localhost"):
    """Return the scope that uvicorn makes of a target."""
    raw_path, _, query = target.partition("?")
    return {
        "type": "http",
        "path": raw_path.replace("%61", "a"),
        "raw_path": raw_path.encode(),
        "query_string": query.encode(),
        "headers": [(b"host", host.encode()), (b"accept", b"*/*")],
    }


@pytest.mark.parametrize("target", ["/v1/x", "//v1/x", "/http://a/b", "*", "v1/x", "ftp://a/b"])
def test_other_forms_stay_as_they_are(target):
    assert origin_form(scope_of(target)) == scope_of(target)


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("http://a:80/v1/x?q=1", "/v1/x?q=1"),
        ("HTTPS://a:80/v1/%61", "/v1/%61"),
        ("http://a:80", "/"),
        ("http://a:80?q=1", "/?q=1"),
        ("http://a:80//v1", "//v1"),
    ],
)
def test_an_absolute_target_is_its_path_at_its_host(target, path):
    expected = scope_of(path, host="a:80")

    assert origin_form(scope_of(target, host="b")) == expected
