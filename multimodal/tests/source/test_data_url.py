"""data: URLs: decoded, or refused with a reason."""

import base64

import pytest
from spaninfer_multimodal import TooLarge, Unreadable
from spaninfer_multimodal.source.data_url import read_data_url

DATA = bytes(range(256))
TEXT = base64.b64encode(DATA).decode()


@pytest.mark.parametrize(
    "url",
    [
        f"data:image/png;base64,{TEXT}",
        f"DATA:IMAGE/PNG;BASE64,{TEXT}",
        f"data:;base64,{TEXT}",
        f"data:image/svg+xml;charset=utf-8;base64,{TEXT}",
        f"data:image/png;base64,{TEXT.rstrip('=')}",
        f"data:image/png;base64,{TEXT.replace('+', '%2B').replace('/', '%2F')}",
        "data:application/octet-stream," + "".join(f"%{value:02x}" for value in DATA),
    ],
)
def test_the_bytes_are_those_that_were_written(url):
    assert read_data_url(url, 256) == DATA


@pytest.mark.parametrize(
    "url", [f"data:image/png;base64,{TEXT}", "data:image/png," + "x" * 256, "data:," + "%41" * 256]
)
def test_too_many_bytes_are_refused(url):
    with pytest.raises(TooLarge, match="255"):
        read_data_url(url, 255)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("data:image/png;base64", "begins like data:image/png;base64,"),
        ("data image/png,x", "begins like"),
        ("data:image/png;base64,!!!!", "not valid base64"),
        ("data:image/png;base64,QUJD QUJD", "not valid base64"),
        ("data:image/png;base64,QQ==QQ==", "not valid base64"),
        ("data:image/png;base64,Q", "not valid base64"),
        ("data:video/jpeg;base64,QUJD,QUJD", "not valid base64"),
        ("data:image/png;base64,QUJÄ", "not valid base64"),
        ("data:" + "x" * 2000 + ",", "begins like"),
    ],
)
def test_what_is_no_data_url_is_refused(url, message):
    with pytest.raises(Unreadable, match=message):
        read_data_url(url, 1000)
