"""Builds of compiler and headers, told apart by content rather than version."""

from types import SimpleNamespace

import pytest
from spaninfer_kernel_launch import toolchain

pathfinder = pytest.importorskip("cuda.pathfinder", reason="needs the extra cu12 or cu13")


@pytest.fixture
def id_of(tmp_path, monkeypatch):
    """Returns the id of a library and a header that are made for the test."""
    library, header = tmp_path / "libnvrtc.so", tmp_path / "cuda_fp16.h"
    toolchain.nvrtc()  # the real one is asked for its version
    found = SimpleNamespace(abs_path=str(library))
    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", lambda _: found)
    monkeypatch.setattr(toolchain, "include_folders", lambda: (str(tmp_path),))

    def make(binary, text):
        library.write_bytes(binary)
        header.write_text(text)
        toolchain.toolchain_id.cache_clear()
        return toolchain.toolchain_id()

    yield make
    toolchain.toolchain_id.cache_clear()


def test_another_library_and_another_header_are_another_toolchain(id_of):
    builds = [
        (b"build 1" + bytes(9000), "half"),
        (b"build 2" + bytes(9000), "half"),
        (b"build 1" + bytes(9001), "half"),
        (b"build 1" + bytes(9000), "half, mended"),
    ]

    ids = [id_of(*build) for build in builds]

    assert len(set(ids)) == 4
    assert id_of(*builds[0]) == ids[0]


def test_another_version_is_another_toolchain(id_of, monkeypatch):
    first = id_of(b"", "")
    monkeypatch.setattr(toolchain, "compiler_version", lambda: (99, 0))

    assert id_of(b"", "") != first


def test_the_headers_that_sources_include_are_among_those_that_count():
    folder = toolchain.Path(toolchain.include_folders()[0])

    names = {header.name for header in folder.glob(toolchain._HEADERS)}

    assert {"cuda_fp16.h", "cuda_fp16.hpp", "cuda_bf16.h", "cuda_fp8.hpp"} <= names
