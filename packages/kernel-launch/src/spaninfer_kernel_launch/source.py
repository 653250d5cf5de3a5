"""CUDA C++ from the data of installed packages, joined into one translation unit.

The compiler then needs no include paths of ours, and one text is all that a kernel depends on: it
is the key under which the compiled form is kept. Each file begins with a #line, so that messages
name the real file and line.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from spaninfer_kernel_launch.signature import Signature

_HEADERS = "spaninfer_kernel_launch"


@dataclass(frozen=True, slots=True)
class Source:
    """A .cu file of `package`, preceded by the headers that it names.

    `headers` lie in this package's csrc/, `own` in the csrc/ of `package`; the latter come second.
    `parts` are files of `package` too, of a kernel that one file would be too long for: they follow
    the macros, in front of the .cu file. `kernels` are the signatures of those that are launched;
    they are checked against the text whenever it is compiled.
    """

    package: str
    path: str
    headers: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    kernels: tuple[Signature[Any], ...] = ()

    def text(self, macros: Iterable[tuple[str, str]]) -> str:
        """Return the whole translation unit.

        Macros are defined after the headers, for the kernel's own files alone: a name as short as T
        must not reach the templates of cuda_fp16.h.
        """
        headers = [_part(_HEADERS, f"csrc/{header}") for header in self.headers]
        headers += [_part(self.package, f"csrc/{header}") for header in self.own]
        defines = [f"#define {name} {text}\n" for name, text in macros]
        kernel = [_part(self.package, path) for path in (*self.parts, self.path)]
        return "".join([*headers, '#line 1 "macros"\n', *defines, *kernel])


@cache
def check_kernels(source: Source) -> None:
    """Raise SignatureError where the parameters of a kernel are not those that `kernels` say."""
    text = source.text(())
    for kernel in source.kernels:
        kernel.check(text)


@cache
def _part(package: str, path: str) -> str:
    """Return the file's text, preceded by the #line that names it."""
    text = files(package).joinpath(path).read_text(encoding="utf-8")
    return f'#line 1 "{package}/{path}"\n{text}\n'
