"""The playground's Markdown, as plain data; run by Node.js, where there is one."""

import json

import pytest
from page_modules import needs_node, page_function

pytestmark = needs_node


@pytest.fixture(scope="module")
def parsed(tmp_path_factory):
    """What parses texts, in one process for as many as are given."""
    return page_function(tmp_path_factory.mktemp("page"), "markdown", "parse")


def text(value):
    return {"kind": "text", "text": value}


def test_blocks_are_told_apart(parsed):
    (blocks,) = parsed(
        "# Head\n\nOne\ntwo\n\n- a\n- b\n  - c\n\n3. x\n4. y\n\n> said\n> so\n\n---\n"
        "| a | b |\n|---|:-:|\n| 1 | 2 |\n\n```python\nprint(1)\n\n# no head\n```\nafter"
    )

    assert [block["kind"] for block in blocks] == [
        *("heading", "paragraph", "list", "list", "quote", "rule", "table", "code", "paragraph")
    ]
    heading, paragraph, bullets, numbers, quote, _, table, code, _ = blocks
    assert heading == {"kind": "heading", "level": 1, "spans": [text("Head")]}
    assert paragraph["spans"] == [text("One\ntwo")]
    assert [len(item) for item in bullets["items"]] == [1, 2], "c lies below b"
    assert (numbers["ordered"], numbers["start"], len(numbers["items"])) == (True, 3, 2)
    assert quote["blocks"][0]["spans"] == [text("said\nso")]
    assert table["rows"] == [[[text("a")], [text("b")]], [[text("1")], [text("2")]]]
    assert code == {"kind": "code", "language": "python", "text": "print(1)\n\n# no head"}


def test_spans_are_told_apart(parsed):
    (blocks,) = parsed(
        "**bold *both*** `a*b*` ``x`y`` [here](https://a.b/c) \\*no\\* snake_case_name"
    )

    spans = blocks[0]["spans"]
    kinds = [span["kind"] for span in spans if span != text(" ")]
    assert kinds[:4] == ["strong", "code", "code", "link"]
    assert [span["text"] for span in spans if span["kind"] == "code"] == ["a*b*", "x`y"]
    rest = "".join(span["text"] for span in spans if span["kind"] == "text")
    assert rest.endswith("*no* snake_case_name")


@pytest.mark.parametrize(
    "attack",
    [
        "[x](javascript:alert(1))", "[x](JaVaScRiPt:alert)", "[x](data:text/html,<script>)",
        "![x](file:///etc/passwd)", "[x](//evil.example)", "[x](vbscript:x)",
    ],
)  # fmt: skip
def test_no_target_is_a_link_that_could_run_or_load_something(parsed, attack):
    assert '"link"' not in json.dumps(parsed(attack))


def test_markup_stays_text(parsed):
    (blocks,) = parsed("<script>alert(1)</script> <img src=x onerror=alert(1)>")

    assert blocks == [
        {
            "kind": "paragraph",
            "spans": [text("<script>alert(1)</script> <img src=x onerror=alert(1)>")],
        }
    ]


def test_every_beginning_of_an_answer_can_be_shown(parsed):
    whole = "## A **b\n1. `c\n   ```js\n   let x = `1`;\n```\n> - [d](https://e) *f* | g |\n|---|\n"

    for blocks in parsed(*(whole[:end] for end in range(len(whole) + 1))):
        assert isinstance(blocks, list)


@pytest.mark.parametrize(
    "unit",
    ["*", "**a ", "`", "``` ", "[", "> ", "- ", "  - ", "_a ", "|", "![", "# ", "\\", "~~~\n"],
)
def test_long_answers_of_marks_take_no_time_and_no_stack(parsed, unit):
    assert parsed(unit * (30_000 // len(unit)))


def test_an_open_fence_runs_to_the_end(parsed):
    (blocks,) = parsed("```\nlet a = 1;\n**still code")

    assert blocks == [{"kind": "code", "language": "", "text": "let a = 1;\n**still code"}]
