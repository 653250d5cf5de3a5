"""docs/spec-language.md, printed from the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator

from spaninfer_engine.spec.account import DECISIVE
from spaninfer_engine.spec.describe import toml
from spaninfer_engine.spec.vocabulary import SECTIONS, TOP
from spaninfer_engine.spec.vocabulary.words import REQUIRED, Section, Word

_HEAD = """\
# The model-spec language

<!-- Printed from spaninfer_engine/spec/vocabulary; edit that. -->

A model architecture is data: one TOML file that says what differs from the defaults below. Reading
it runs no code. `spaninfer serve MODEL --spec my_model.toml` serves a new model whose building
blocks are known.

```toml
hf = ["Qwen3ForCausalLM"]   # config.json: architectures
inherits = "qwen2"

[attn]
bias = "$attention_bias?'q,k,v,o'|'none'"
qk_norm = "rms"
```

## Values

| written | means |
|---|---|
| `7`, `1e-5`, `true`, `"rms"`, `["a", "b"]` | itself |
| `"null"` | nothing, where a key may be null |
| `"$a\\|b.c\\|7"` | the first of these config keys that is present and not null, else 7 |
| `"$flag?key\\|..."` | this alternative counts only where the config key `flag` is true |
| `"$a\\|=expr\\|'text'"` | alternatives may be expressions, texts, numbers, true, false, null |
| `"=expr"` | an expression |

Expressions know the names of `[let]` and `[dims]`, config keys, the index `i` of the layer (in the
keys marked "by layer"), numbers, `'texts'`, `[lists]`, `list[index]`,
`+ - * / // % **`, `== != < <= > >=`, `in`, `not in`, `and`, `or`, `not`, and `a if c else b`.
There are no calls. Lists named `ignore` and `unused` add up along what a file inherits; all other
keys replace.

A config key that config.json does not have means what `[config.default]` says, and nothing where
that is silent. A key that is null is there: it has no value, and the next alternative counts.

## Presence

A part exists when the spec says so: biases by the `bias` keys, norms by a non-empty name or a
`norm` key, a head of its own by `[head] tied`. A tensor that is declared and missing, or stored and
not declared, is an error before a byte is loaded. The checkpoint's names only choose among declared
alternatives: a prefix, the storage of experts, a head that is stored although it could be tied.

## Accounting for config.json

Every key that a used value mentions counts as read. The others are reported by name, unless known
to be inert or named under `[config] ignore`. These keys are never just reported, because
they change the mathematics; unread, they are an error (unless they have a value in brackets):
"""


def document() -> str:
    """Return the text of docs/spec-language.md."""
    decisive = ", ".join(
        f"`{key}`" + (f" ({', '.join(map(toml, neutral))})" if neutral else "")
        for key, neutral in DECISIVE.items()
    )
    top = "\n".join(f"| `{key}` | {_cell(says)} |" for key, says in TOP.items())
    sections = "\n".join(_section(name, section) for name, section in SECTIONS.items())
    table = f"## Top level\n\n| key | meaning |\n|---|---|\n{top}\n"
    return f"{_HEAD}{decisive}.\n\n{table}\n{sections}"


def _section(name: str, section: Section) -> str:
    lines = [f"## [{name}]", "", section.says, ""]
    if section.keys:
        lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
        lines += list(_rows(section))
        lines.append("")
    return "\n".join(lines)


def _rows(section: Section) -> Iterator[str]:
    for name, key in section.keys.items():
        says = f"{key.says} (by layer)" if key.per_layer else key.says
        yield f"| `{name}` | {_cell(key.type.name)} | {_default(key)} | {_cell(says)} |"


def _default(word: Word) -> str:
    if word.default is REQUIRED:
        return ""
    written = toml(None if word.default == "null" else word.default)
    return f"`{_cell(written)}`"


def _cell(text: str) -> str:
    """Return a text that does not end the cell of a table."""
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(document(), end="")
