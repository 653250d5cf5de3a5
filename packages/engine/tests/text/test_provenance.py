import json
from datetime import datetime

import jinja2.ext
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from spaninfer_engine.text.provenance import TrustedText, mask_of, trusted_ranges
from spaninfer_engine.text.sandbox import Sandbox

OURS, THEIRS = "bcdBCD", "жшЖШ"  # letters of the template, letters of users

JINJA = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
)
JINJA.filters["tojson"] = lambda value, **how: json.dumps(value, **{"ensure_ascii": False} | how)


def render(source: str, **variables: object) -> str:
    sandbox = Sandbox()
    return sandbox.render_within_limits(sandbox.compile_within_limits(source), variables)


def trusted(text: str) -> str:
    """The text, with a dot for each character that the template did not write."""
    flags = mask_of(text)
    return "".join(char if flag else "." for char, flag in zip(str(text), flags, strict=True))


def quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"


literals = st.text("bcd <'\n", max_size=5).map(quote)
searched = st.sampled_from(["b", "ж", "жш", "cd", " ", "'", "<"]).map(quote)
bounds = st.sampled_from(["", "0", "1", "2", "-1", "-2", "7"])
steps = st.sampled_from(["", "1", "2", "-1"])
counts = st.sampled_from(["", ", 0", ", 1"])
numbers = st.integers(-9, 99).map(lambda number: f"({number})")

ONE = [
    *(f"({{x}}).{name}()" for name in "strip lstrip rstrip upper lower title capitalize".split()),
    *(f"({{x}})|{name}" for name in "trim upper lower title capitalize string first last".split()),
    "({x})[{i}:{j}]",
    "({x})[{i}:{j}:{k}]",
    "({x}).strip({s})",
    "({x})|trim({s})",
    "({x}).removeprefix({s})",
    "({x}).removesuffix({s})",
    "({x}).partition({s})|join",
    "({x}).rpartition({s})[1]",
    "({x}).split()|join",
    "({x}).split({s})|last",
    "({x}).rsplit({s}{c})|first",
    "({x}).rsplit(none{c})|last",
    "({x}).splitlines()|join",
    "({x}).splitlines(true)|join",
    "({x})|list|join",
    "({x})|reverse",
    "({x})|list|sort|unique|join",
    "({x})|list|map('upper')|join",
    "({x})|indent(1, first=true)",
    "({x})|indent(1, blank=true)",
    "({x})|e ~ ''",
    "({x})|safe ~ ''",
    "({x})|safe|e|string",
    "({x})|tojson",
    "[{x}, 1]|tojson(indent=1)",
    "[{x}]|string",
    "({x}) * 2",
    "2 * ({x})",
    "({x}).center(9)",
    "({x}).ljust(9, 'b')",
    "({x}).rjust(9, 'b')",
    "({x}) if {s} in ({x}) else 'b'",
    "({x}) if ({x})|length > 3 else 'b'",
    "'b%s c%%d' % ({x})",
    "'%sb'|format({x})",
    "'b{{}}c{{{{'.format({x})",
    "'b{{a[0]}}'.format(a=[{x}])",
    "'{{x}}b'.format_map({{'x': {x}}})",
]
TWO = [
    "({x}) ~ ({y})",
    "({x}) + ({y})",
    "({x}) ~ {n} ~ ({y})",
    "({x}).replace({s}, {y}{c})",
    "({x})|replace({s}, {y})",
    "({x}).split({s})|join({y})",
    "({y}).join(({x}).split({s}{c}))",
    "({y}).join([{x}, {x}]|map('upper'))",
    "[{x}, {y}]|join('b')",
    "[{{'a': {x}}}, {{'a': {y}}}]|join('b', attribute='a')",
    "{{{x}: {y}}}|tojson",
    "{{'b': {x}, 'c': [{y}]}}|tojson(sort_keys=true, ensure_ascii=false)",
    "{{{x}: ({y}, none)}} ~ ''",
    "{{'b': {y}}}.get('b')",
    "((({x})|safe) + ({y})) ~ ''",
    "(({x}) + (({y})|e)) ~ ''",
    "'%s b %s' % ({x}, {y})",
    "({x}) % ({y}) if '%' in ({x}) else {y}",
    "[{x}, {y}]|max",
    "({x}).removeprefix({y})",
    "(({x}) or ({y}))|default('b')",
]


def apply(forms: list[str], texts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    parts = {"i": bounds, "j": bounds, "k": steps, "s": searched, "c": counts, "n": numbers}
    return st.builds(
        lambda form, **given: f"({form.format(**given)})",
        st.sampled_from(forms),
        x=texts,
        y=texts,
        **parts,
    )


expressions = st.recursive(
    st.one_of(literals, st.sampled_from(["u", "v"])),
    lambda texts: st.one_of(apply(ONE, texts), apply(TWO, texts)),
    max_leaves=6,
)
users = st.text("жш <'%\n", max_size=8)


@settings(max_examples=150, deadline=None)
@given(expressions, users, users)
def test_operations_give_the_text_that_jinja_gives_and_know_who_wrote_each_letter(expression, u, v):
    source = "{% for i in [1] %}{% set x = " + expression + " %}{{ x }}{% endfor %}"
    try:
        truth = JINJA.from_string(source).render(u=u, v=v)
    except (TypeError, ValueError, jinja2.UndefinedError) as refused:
        with pytest.raises(type(refused)):
            render(source, u=u, v=v)
        return

    text = render(source, u=u, v=v)

    assert str.__str__(text) == truth
    for char, flag in zip(truth, mask_of(text), strict=True):
        assert not (flag and char in THEIRS)
        assert flag or char not in OURS


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("b{{ u }}c", "b....c"),
        ("{% set x %}b{{ u }}{% endset %}{{ x }}{{ x[1:] }}", "b" + "." * 8),
        ("{% macro m(x, y='b') %}c{{ x }}{{ y }}{% endmacro %}{{ m(u) }}", "c....b"),
        (
            "{% macro m() %}b{{ caller() }}{% endmacro %}{% call m() %}c{{ u }}{% endcall %}",
            "bc....",
        ),
        ("{% filter upper %}b{{ u }}{% endfilter %}", "B...."),
        ("{% generation %}b{{ u }}{% endgeneration %}", "b...."),
        ("{% for c in 'b' ~ u %}{{ loop.index0 }}{{ c }}{% endfor %}", "0b1.2.3.4."),
        ("{% for k, v in {'b': u}.items() %}{{ k }}{{ v }}{% endfor %}", "b...."),
        ("{% set n = namespace(x='b') %}{% set n.x = n.x + u %}{{ n.x }}", "b...."),
        ("{{ 1 ~ true ~ none ~ 1.5 }}", "1TrueNone1.5"),
        ("{{ ['b', 'c'][1] }}{{ ('b', 'c')[0] }}{{ {'b': 'c'}.b }}", "cbc"),
        ("{{ 'b' 'c' | upper | lower }}", "bc"),
        ("{{ '<b>' | safe }}{{ '<b>' | e }}", "<b>&lt;b&gt;"),
        ("{{ strftime_now('%Y') }}", str(datetime.now().year)),
        ("{{ u.partition('жш')[1] }}{{ u.rpartition('жш')[1] }}", "...."),
        ("{{ 'b'.zfill(3) }}{{ u.zfill(5) }}", "00b....."),
        ("{{ ['b' ~ u] }}", "..b......"),
        ("{{ '{:ж>3}'.format(1) }}{{ '%3d' % 1 }}{{ '%3d' % 1.5 }}", "жж1  1  1"),
        ("{{ (u[:0] ~ '{}').format(1) }}{{ p.format(1) }}{{ q % 1 }}", "1......"),
    ],
)
def test_the_template_s_own_text_is_told_apart(source, expected):
    assert trusted(render(source, u="жшжш", p="{:ж>3}", q="%3d")) == expected


def test_a_trusted_text_is_a_text_like_any_other():
    text = TrustedText("<b>")

    assert text == "<b>"
    assert {text: 1}["<b>"] == 1
    assert repr(text) == "'<b>'"
    assert [*text] == ["<", "b", ">"]
    assert trusted_ranges(render("b{{ u }}{{ 'c' }}d", u="ж")) == ((0, 1), (2, 4))


def test_what_is_forgotten_is_not_trusted():
    assert trusted(text := render("{{ ('b' ~ u).expandtabs() }}", u="ж")) == ".."
    assert trusted(render("{{ '%5s' % ('b' ~ u) }}", u="ж")) == "....."
    assert type(text) is str


def test_a_prompt_in_a_million_pieces_is_refused():
    with pytest.raises(SecurityError, match="more than 1048576 texts of its own"):
        trusted_ranges(render("{{ ('b' ~ u) * 1048577 }}", u="ж"))
