"""Local files: confined to one folder."""

import os
import sys

import pytest
from spaninfer_multimodal import Forbidden, TooLarge
from spaninfer_multimodal.source.local import read_file

LINKS = pytest.mark.skipif(sys.platform == "win32", reason="needs links and pipes of POSIX")


@pytest.fixture
def folder(tmp_path):
    """An allowed folder with files and folders, beside one with a secret."""
    (tmp_path / "allowed" / "inner").mkdir(parents=True)
    (tmp_path / "allowed" / "a b.png").write_bytes(b"picture")
    (tmp_path / "allowed" / "inner" / "c.png").write_bytes(b"inner")
    (tmp_path / "allowed2").mkdir()
    (tmp_path / "allowed2" / "secret").write_bytes(b"secret")
    return tmp_path / "allowed"


def test_files_below_the_folder_are_read(folder):
    assert read_file((folder / "a b.png").as_uri(), folder, 7) == b"picture"
    assert read_file((folder / "inner" / "c.png").as_uri(), folder, 7) == b"inner"
    assert read_file((folder / "inner").as_uri() + "/../a%20b.png", folder, 7) == b"picture"


@pytest.mark.parametrize(
    "path",
    ["/../allowed2/secret", "/inner/../../allowed2/secret", "/%2e%2e/allowed2/secret", "2/secret",
     "/..%2fallowed2/secret", "/missing", "", "/", "/inner", "/a b.png/x", "/x%00.png"],
)  # fmt: skip
def test_nothing_else_is(folder, path):
    with pytest.raises(Forbidden):
        read_file(folder.as_uri() + path, folder, 100)


def test_what_exists_elsewhere_is_not_told(folder):
    messages = set()
    for name in ("secret", "nothing"):
        with pytest.raises(Forbidden) as error:
            read_file((folder.parent / "allowed2" / name).as_uri(), folder, 100)
        messages.add(str(error.value).replace(name, "…"))

    assert len(messages) == 1


@pytest.mark.parametrize(
    "url", ["file://host/x", "file:x.png", "file:///x?y", "file:///x#y", "file:", "file://[x/y"]
)
def test_other_spellings_of_file_urls_are_refused(folder, url):
    with pytest.raises(Forbidden):
        read_file(url, folder, 100)


def test_a_file_that_is_too_large_is_refused(folder):
    with pytest.raises(TooLarge, match="7 bytes; at most 6"):
        read_file((folder / "a b.png").as_uri(), folder, 6)


def test_a_folder_that_does_not_exist_allows_nothing(folder):
    with pytest.raises(Forbidden):
        read_file((folder / "a b.png").as_uri(), folder / "gone", 100)


@LINKS
def test_links_are_followed_inside_and_refused_outside(folder):
    (folder / "in").symlink_to(folder / "inner")
    (folder / "out").symlink_to(folder.parent / "allowed2")
    (folder / "out.png").symlink_to(folder.parent / "allowed2" / "secret")

    assert read_file(folder.as_uri() + "/in/c.png", folder, 100) == b"inner"
    for path in ("/out/secret", "/out.png"):
        with pytest.raises(Forbidden):
            read_file(folder.as_uri() + path, folder, 100)


@LINKS
def test_the_folder_itself_may_be_a_link(folder):
    link = folder.parent / "link"
    link.symlink_to(folder)

    assert read_file(link.as_uri() + "/a b.png", link, 100) == b"picture"


@LINKS
def test_a_link_put_there_after_the_check_is_not_followed(folder, monkeypatch):
    secret, picture = folder.parent / "allowed2" / "secret", folder / "a b.png"
    real_open = os.open

    def open_late(path, *args, **kwargs):
        if path == picture.name:  # the check is over
            picture.unlink()
            picture.symlink_to(secret)
        return real_open(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", open_late)
    monkeypatch.setattr(os, "supports_dir_fd", {open_late})

    with pytest.raises(ValueError, match="cannot be opened"):
        read_file(picture.as_uri(), folder, 100)


@LINKS
def test_a_pipe_is_no_file_and_is_not_waited_for(folder):
    os.mkfifo(folder / "pipe")

    with pytest.raises(Forbidden, match="no regular file"):
        read_file((folder / "pipe").as_uri(), folder, 100)
