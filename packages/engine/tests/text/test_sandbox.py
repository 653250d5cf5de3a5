import re
from datetime import datetime

import pytest
from jinja2.exceptions import SecurityError, TemplateError
from spaninfer_engine.text import limits
from spaninfer_engine.text.sandbox import Sandbox


def render(source: str, **variables: object) -> str:
    sandbox = Sandbox()
    template = sandbox.compile_within_limits(source)
    return sandbox.render_within_limits(template, variables)


GROWING = (
    "{% set ns = namespace(x=START) %}{% for i in range(60) %}{% set ns.x = STEP %}{% endfor %}"
)


def growing(start: str, step: str, then: str = "") -> str:
    return GROWING.replace("START", start).replace("STEP", step) + then


@pytest.mark.parametrize(
    "bomb",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}text{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% for i in range(n) %}{{ m(n) }}{% endfor %}{% endmacro %}{{ m(9) }}",
        "{{ range(10 ** 7) }}",
        "{{ 'x' * 10 ** 9 }}",
        "{{ 10 ** 9 * 'x' }}",
        "{{ ['x'] * 10 ** 9 }}",
        "{{ 10 ** 100 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ 'x'.ljust(999999999) }}",
        "{{ 'x'['center'](width=999999999) }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ 'x{:>9999}'['format'](1) }}",
        "{{ '{:{w}}'.format(1, w=999999999) }}",
        "{{ '{a:>999999999}'.format_map({'a': 1}) }}",
        "{{ '%999999999d' | format(1) }}",
        "{{ 'a\\nb' | indent(999999999) }}",
        "{{ [1] | tojson(indent=999999999) }}",
        "{% set a = 'a' * 10 ** 6 %}{{ a.replace('a', a) }}",
        "{% set a = 'a' * 10 ** 6 %}{{ a | replace('a', a) }}",
        "{% set a = 'a' * 10 ** 6 %}{{ ''.join([a] * 10 ** 5) }}",
        "{% set a = 'a' * 10 ** 6 %}{{ ([a] * 10 ** 5) | join }}",
        "{{ ('a'.encode() * 10 ** 8) | length }}",
        "{{ (['a'] | map(attribute='encode') | list)[0]().center(10 ** 8) | length }}",
        "{{ (1).to_bytes(10 ** 8, 'big') | length }}",
        "{{ true['to_bytes'](10 ** 8) | length }}",
        "{{ 'aa'.translate({97: 'b' * 10 ** 7}) | length }}",
        "{{ ('a,' * 10 ** 7).split(',') | length }}",
        "{{ ('a ' * 10 ** 7).rsplit() | length }}",
        "{{ ('a\\x85' * 10 ** 7).splitlines() | length }}",
        "{{ ('ab' * 10 ** 7) | list | length }}",
        "{{ (('a' ~ user) * 10 ** 6) | e | length }}",
        "{% set a = ('a' ~ user) * 10 ** 6 %}{{ [a] | tojson | length }}",
        growing("'aaaa'", "ns.x + ns.x"),
        growing("'aaaa'", "ns.x ~ ns.x"),
        growing("[1]", "ns.x + ns.x"),
        growing("3", "ns.x * ns.x"),
        growing("[1]", "[ns.x, ns.x]", "{{ ns.x }}"),
        growing("[1]", "[ns.x, ns.x]", "{{ ns.x | tojson }}"),
        growing("[1]", "[ns.x, ns.x]", "{{ ns.x | string }}"),
        growing("[1]", "[ns.x, ns.x]", "{{ 'a' ~ ns.x }}"),
        "{% set ns = namespace(x='aaaa') %}{% for i in range(60) %}"
        "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
    ],
)
def test_a_template_that_would_take_for_ever_or_all_memory_is_refused(bomb, monkeypatch):
    monkeypatch.setattr(limits, "MAX_SECONDS", 0.2)

    with pytest.raises((SecurityError, OverflowError, RecursionError)):
        render(bomb, user="b")


@pytest.mark.parametrize(
    "escape",
    [
        "{{ ''.__class__ }}{{ ''.__class__.__mro__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{% include 'x' %}",
        "{{ lipsum(n=3) }}",
        "{{ 'x' | attr('__class__') }}",
    ],
)
def test_a_template_reaches_neither_python_nor_files_nor_the_caller_s_values(escape):
    with pytest.raises((TemplateError, TypeError)):
        render(escape, messages=[])


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for i in range(3) %}\n  {{ i }}{% endfor %}", "  0  1  2"),
        ("{% for i in range(9) %}{% if i > 1 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        (
            "{% for i in range(3) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
            "02",
        ),
        ("{% for i in [1, 2] %}{{ loop.index0 }}{{ loop.last }}{% endfor %}", "0False1True"),
        ("a{% generation %}b{{ 'c' }}{% endgeneration %}d", "abcd"),
        ("{{ {'b': '<é>', 'a': [1, none]} | tojson }}", '{"b": "<é>", "a": [1, null]}'),
        ("{{ {'a': 1} | tojson(indent=1) }}", '{\n "a": 1\n}'),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}", '{"a": 2, "b": 1}'),
        ("{{ 'a' ~ 1 ~ none }}", "a1None"),
        ("{{ 'a, b'.split(', ') + ' c d '.split() + 'e\nf'.splitlines() }}", str([*"abcdef"])),
        ("{{ ['x', 'y'] | join(', ') }}", "x, y"),
        ("{{ [{'n': 1}, {'n': 2}] | join('+', attribute='n') }}", "1+2"),
        ("{{ 'a\nb' | indent(2) }}", "a\n  b"),
        ("{{ 'aXbX' | replace('X', '-') }}{{ 'aXbX'.replace('X', '', 1) }}", "a-b-abX"),
        ("{{ [3, 1] | sort | map('string') | list }}", "['1', '3']"),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(1) }}{{ m('a') }}", "<1><a>"),
        (
            "{% set n = namespace(i=0) %}{% for x in 'ab' %}{% set n.i = n.i + 1 %}{% endfor %}"
            "{{ n.i }}",
            "2",
        ),
        ("{{ '%d%%' % 5 }}{{ 7 % 4 }}", "5%3"),
        ("{{ undefined }}{{ none is defined }}", "True"),
    ],
)
def test_what_templates_use_works(source, text):
    assert render(source) == text


def test_the_date_is_offered():
    assert re.fullmatch(r"\d{4}", render("{{ strftime_now('%Y') }}"))
    assert render("{{ strftime_now('%Y') }}") == str(datetime.now().year)


def test_a_long_conversation_is_within_the_limits():
    messages = [{"content": "word " * 200}] * 1000
    source = "{% for m in messages %}{{ '<|a|>' + m.content | trim + '<|b|>' }}{% endfor %}"

    assert len(render(source, messages=messages)) > 999_000


def test_renderings_do_not_share_their_budget():
    sandbox = Sandbox()
    template = sandbox.compile_within_limits("{{ 'x' * 10 ** 7 }}")

    for _ in range(5):
        assert len(sandbox.render_within_limits(template, {})) == 10**7


def test_a_template_with_a_list_in_its_loop_knows_that_contents_may_be_lists():
    sandbox = Sandbox()

    assert sandbox.loops_over_content("{% for p in message['content'] %}{% endfor %}")
    assert sandbox.loops_over_content("{% for p in m.content %}{% endfor %}")
    assert not sandbox.loops_over_content("{% for m in messages %}{{ m.content }}{% endfor %}")
