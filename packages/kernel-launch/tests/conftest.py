"""Kernels in a package made for the test."""

import importlib
import uuid

import pytest
from spaninfer_kernel_launch import Source


@pytest.fixture
def source_of(tmp_path, monkeypatch):
    """Makes a Source of CUDA C++ text with these kernels, after the headers that are named."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(text, headers=(), kernels=()):
        name = f"made_for_the_test_{uuid.uuid4().hex}"
        package = tmp_path / name
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "kernel.cu").write_text(text)
        importlib.invalidate_caches()
        return Source(name, "kernel.cu", headers, kernels=kernels)

    return make
