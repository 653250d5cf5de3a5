"""Metrics of the source tree, one JSON record per commit: sizes, shapes, retired habits.

    python benchmarks/structure.py [COMMIT ...] >> benchmarks/records/structure-DATE.jsonl

Sources are read from git, those of the working tree's HEAD unless commits are named.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

MAX_PARAMETERS = 6
LONG_FILE = 400
BACKEND = re.compile(r"backend(?:\.name)?\s*(?:==|!=)\s*[\"']")
WORD = re.compile(r"\bword\(\s*\w+,\s*\d+")


def git(*arguments: str) -> str:
    """Return what git prints."""
    return subprocess.run(("git", *arguments), check=True, capture_output=True, text=True).stdout


def sources(commit: str) -> Iterator[tuple[str, str]]:
    """Yield the path and text of every source file of the packages, Python and CUDA."""
    for path in git("ls-tree", "-r", "--name-only", commit).splitlines():
        if "/src/" in path and path.endswith((".py", ".cu", ".cuh")):
            yield path, git("show", f"{commit}:{path}")


def count(commit: str) -> dict[str, object]:
    """Return the counts of one commit."""
    texts = dict(sources(commit))
    python = {path: text for path, text in texts.items() if path.endswith(".py")}
    trees = [ast.parse(text) for text in python.values()]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    functions = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = sorted(each.end_lineno - each.lineno + 1 for each in functions if each.end_lineno)
    lines, folders = Counter[str](), Counter[str]()
    for path, text in texts.items():
        lines[path.partition("/src/")[0]] += text.count("\n")
        folders[path.rpartition("/")[0]] += 1
    return {
        "benchmark": "structure",
        "commit": git("rev-parse", "--short=12", commit).strip(),
        "lines": dict(sorted(lines.items())),
        "total_lines": lines.total(),
        "files": len(texts),
        "files_over_400_lines": sum(text.count("\n") > LONG_FILE for text in python.values()),
        "most_files_in_a_folder": folders.most_common(1)[0],
        "function_lines": {
            "median": lengths[len(lengths) // 2],
            "p95": lengths[-len(lengths) // 20],
        },
        "functions": len(functions),
        "functions_over_6_parameters": sum(num_parameters(n) > MAX_PARAMETERS for n in functions),
        "asks_backend_by_name": sum(len(BACKEND.findall(text)) for text in python.values()),
        "words_by_number": sum(len(WORD.findall(text)) for text in python.values()),
        "engine_modules_entered": {
            package: len(set(engine_modules(python, f"packages/{package}/")))
            for package in ("serving", "spaninfer")
        },
        "splatted_tuples": sum(num_splatted(n) for n in nodes if isinstance(n, ast.Call)),
    }


def engine_modules(python: dict[str, str], folder: str) -> Iterator[str]:
    """Yield the modules of the engine, but for its root, that a package's files import from."""
    for path, text in python.items():
        if path.startswith(folder):
            for node in ast.walk(ast.parse(text)):
                module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
                if module.startswith("spaninfer_engine."):
                    yield module


def num_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return how many parameters a caller may give."""
    given = function.args
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def num_splatted(call: ast.Call) -> int:
    """Return how many arguments are tuples or lists written out and splatted."""
    stars = (each.value for each in call.args if isinstance(each, ast.Starred))
    return sum(isinstance(value, ast.Tuple | ast.List) for value in stars)


if __name__ == "__main__":
    for commit in sys.argv[1:] or ["HEAD"]:
        print(json.dumps(count(commit)))
