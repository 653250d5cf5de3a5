"""Installed packages: ours, and those that an extra brings."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping

from spaninfer.doctor.finding import Finding, Verdict
from spaninfer.facts import versions

_NEEDED = (
    *("spaninfer", "spaninfer-serving", "spaninfer-engine", "spaninfer-kernels-cpu"),
    *("spaninfer-op-reference", "spaninfer-demo"),
)
_OPTIONAL = (
    *("spaninfer-kernel-launch", "spaninfer-kernels-cuda", "span-attention"),
    "spaninfer-multimodal",
)
_LIBRARIES = ("numpy", "numba", "tokenizers", "llguidance", "torch", "cuda-bindings")


def check_packages() -> Iterator[Finding]:
    """Yield the versions of Python, of our packages, and of the libraries that matter."""
    yield Finding("Python", f"{platform.python_version()}, {platform.platform()}")
    yield compare_versions(versions((*_NEEDED, *_OPTIONAL)))
    libraries = versions(_LIBRARIES).items()
    yield Finding("libraries", ", ".join(f"{name} {number}" for name, number in libraries))


def compare_versions(found: Mapping[str, str]) -> Finding:
    """Return whether all of our packages are there, and of one release."""
    missing = [name for name in _NEEDED if name not in found]
    releases = {number.rpartition(".")[0] for number in found.values()}
    seen = ", ".join(f"{name} {number}" for name, number in found.items())
    if missing:
        way_out = f"install {', '.join(missing)}: python3 -m nox -s install"
        return Finding("packages", seen or "none", Verdict.WRONG, way_out)
    if len(releases) > 1:
        way_out = "packages of different releases do not fit together: install all of one"
        return Finding("packages", seen, Verdict.WRONG, way_out)
    return Finding("packages", f"{len(found)} of release {releases.pop()}")
