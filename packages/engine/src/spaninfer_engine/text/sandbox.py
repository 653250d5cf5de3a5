"""The Jinja environment that chat templates run in: what Hugging Face templates may use, and less.

On top of Jinja's immutable sandbox: only the filters that templates need, a budget spent by
whatever repeats, and texts that know what of them the template wrote (see provenance.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from types import BuiltinMethodType, MethodType
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer
from markupsafe import Markup

from spaninfer_engine.text import limits
from spaninfer_engine.text.filters import TEMPLATE_FILTERS
from spaninfer_engine.text.formatting import Formatter, percent
from spaninfer_engine.text.limits import MAX_WIDTH, Budget, spend, spend_on
from spaninfer_engine.text.literals import LiteralGenerator, Literals
from spaninfer_engine.text.methods import call_method
from spaninfer_engine.text.provenance import TrustedText, add, concat, repeat, text_of

GLOBAL_NAMES = ("range", "dict", "namespace")
FORBIDDEN_METHODS = frozenset(
    {"encode", "to_bytes"}  # bytes, whose methods and repetitions nothing here looks at
    | {"translate"}  # replaces without end
)


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment that compiles and renders chat templates within limits."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    code_generator_class = LiteralGenerator
    concat = staticmethod(concat)
    spend = staticmethod(spend)  # compiled templates reach these three as attributes
    joined_text: Callable[..., str]
    literals: Literals

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_finalize,
            extensions=[LoopControlExtension, GenerationBlock],
        )
        self.joined_text = _joined_text
        self.literals = Literals()
        self.filters = dict(TEMPLATE_FILTERS)
        self.globals = {name: self.globals[name] for name in GLOBAL_NAMES}
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}

    def compile_within_limits(self, source: str) -> Template:
        """A template whose loops spend from the budget."""
        return self.from_string(_Pacing().visit(self.parse(source)))

    def loops_over_content(self, source: str) -> bool:
        """Return True if a template takes a message's content as a list of parts, not text."""
        loops = self.parse(source).find_all(nodes.For)
        return any(_names_content(loop.iter) for loop in loops)

    def render_within_limits(self, template: Template, variables: Mapping[str, Any]) -> str:
        """The rendered text; SecurityError where the template does too much."""
        budget = Budget()
        token = limits.current.set(budget)
        try:
            return concat(_counted(template.generate(variables), budget))
        finally:
            limits.current.reset(token)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """An operator, after a look at how large its result will be."""
        limits.check_operation(operator, left, right)
        match operator, left, right:
            case "+", str(), str():
                result = add(left, right)
            case "*", str(), int():
                result = repeat(left, right)
            case "*", int(), str():
                result = repeat(right, left)
            case "%", str(), _ if not isinstance(left, Markup):
                result = percent(left, right)
            case _:
                result = super().call_binop(context, operator, left, right)
        spend(len(result) if isinstance(result, (str, list, tuple)) else 0)
        return result

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """A call from a template, after a look at what it will cost."""
        spend()
        owner, budget = getattr(__obj, "__self__", None), limits.current.get()
        if isinstance(owner, str) and isinstance(__obj, BuiltinMethodType | MethodType):
            args = tuple(map(_gathered, args))
            if budget is not None:
                limits.check_text_method(owner, __obj.__name__, (*args, *kwargs.values()), budget)
            __obj = partial(call_method, owner, __obj.__name__)
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format` and `str.format_map`, with fields looked up and measured here."""
        owner, name = getattr(value, "__self__", None), getattr(value, "__name__", None)
        if not isinstance(owner, str) or name not in ("format", "format_map"):
            return None
        if isinstance(owner, Markup):
            raise SecurityError(f"it calls Markup.{name}, which is not offered to templates")
        formatter = Formatter(self)
        if name == "format_map":
            return lambda mapping: formatter.vformat(owner, (), mapping)
        return lambda *args, **kwargs: formatter.vformat(owner, args, kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """An attribute by dot."""
        _refuse_forbidden(obj, attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """An item, or an attribute, by brackets."""
        _refuse_forbidden(obj, argument)
        return super().getitem(obj, argument)


class GenerationBlock(Extension):
    """`{% generation %} … {% endgeneration %}`: marks a trainer's tokens; here only its body."""

    tags = {"generation"}  # noqa: RUF012 - the type that Jinja declares

    def parse(self, parser: Parser) -> nodes.Node:
        """The nodes between the two tags, in a scope of their own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body, lineno=line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class _Pacing(NodeTransformer):
    """Makes loops and macros spend from the budget, and joins texts through a checked function."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.body.insert(0, _spending(node))
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.body.insert(0, _spending(node))
        return node

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.body.insert(0, _spending(node))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call(node, "joined_text", node.nodes)


def _names_content(expression: nodes.Node) -> bool:
    """Return True if an expression is `content`, `x.content` or `x["content"]`."""
    match expression:
        case nodes.Name(name="content") | nodes.Getattr(attr="content"):
            return True
        case nodes.Getitem(arg=nodes.Const(value="content")):
            return True
    return False


def _spending(node: nodes.Node) -> nodes.Output:
    """An output of nothing that spends what the node's literal text is long."""
    literal = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
    cost = nodes.Const(literal, lineno=node.lineno)
    return nodes.Output([_call(node, "spend", [cost])], lineno=node.lineno)


def _call(node: nodes.Node, name: str, arguments: list[nodes.Expr]) -> nodes.Call:
    """A call of an attribute of the environment, which a template cannot replace."""
    function = nodes.EnvironmentAttribute(name, lineno=node.lineno)
    return nodes.Call(function, arguments, [], None, None, lineno=node.lineno)


def _counted(pieces: Iterator[str], budget: Budget) -> Iterator[str]:
    for piece in pieces:
        budget.spend(len(piece))
        yield piece


def _finalize(value: Any) -> str:
    """A value that becomes output."""
    spend_on(value)
    return text_of(value)


def _joined_text(*values: Any) -> str:
    """The `~` operator."""
    spend_on(values)
    return concat(map(text_of, values))


def _gathered(argument: Any) -> Any:
    """An argument that can be looked at twice: what `map` and its like return can not."""
    return list(argument) if isinstance(argument, Iterator) else argument


def _refuse_forbidden(obj: Any, name: Any) -> None:
    if isinstance(obj, (str, int)) and isinstance(name, str) and name in FORBIDDEN_METHODS:
        kind = "str" if isinstance(obj, str) else "int"
        raise SecurityError(f"it calls {kind}.{name}, which is not offered to templates")


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    """The local time in the given pattern."""
    if len(pattern) > MAX_WIDTH:
        raise SecurityError("it formats the time with a very long pattern")
    return TrustedText(datetime.now().strftime(pattern))
