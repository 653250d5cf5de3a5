"""The two notations of a spec value, parsed into a frozen tree.

    "$a|b.c|=expr|'lit'|7"    the first of: config keys (dotted), expressions, literals
    "$flag?value|..."         an alternative that counts only where the flag is true
    "=expr"                   an expression

    expr     := choice ["if" choice "else" expr]
    choice   := both {"or" both}
    both     := negated {"and" negated}
    negated  := "not" negated | compared
    compared := sum [("==" | "!=" | "<" | "<=" | ">" | ">=" | "in" | "not" "in") sum]
    sum      := product {("+" | "-") product}
    product  := signed {("*" | "/" | "//" | "%") signed}
    signed   := "-" signed | power
    power    := atom ["**" signed]
    atom     := (number | 'text' | name | "(" expr ")" | "[" [expr {"," expr}] "]") {"[" expr "]"}

A name is a name of [let] or [dims], a config key, or `i`, the index of the layer. There are no
calls and no assignments: a spec computes sizes, it does not run.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from spaninfer_engine.spec.language.syntax import (
    Alternative,
    BadValue,
    Binary,
    Chain,
    Condition,
    Constant,
    Expr,
    Guarded,
    Items,
    Key,
    Name,
    Scalar,
    Subscript,
    Unary,
)

MAX_TEXT = 1000  # characters of one value
MAX_DEPTH = 40  # nested brackets, signs and conditions


def parse(text: str) -> Chain | Expr:
    """Return the tree of a text that begins with "$" or "="."""
    if len(text) > MAX_TEXT:
        raise BadValue(f"is longer than {MAX_TEXT} characters")
    if text.startswith("="):
        return _Parser(text[1:]).whole()
    assert text.startswith("$")
    return Chain(tuple(_alternative(part.strip()) for part in _split(text[1:])))


def is_computed(text: str) -> bool:
    """Return True if this text stands for a value other than itself."""
    return text.startswith(("$", "="))


_PATH = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_SPACE = re.compile(r"\s*")
_TOKEN = re.compile(
    r"(?P<number>\d+(\.\d+)?([eE][-+]?\d+)?)"
    rf"|(?P<name>{_PATH.pattern})"
    r"|(?P<text>'[^']*')"
    r"|(?P<sign>\*\*|//|==|!=|<=|>=|[-+*/%<>()\[\],])"
)
_WORDS = {"if", "else", "and", "or", "not", "in"}
_CONSTANTS: dict[str, Scalar] = {"null": None, "true": True, "false": False}


def _split(text: str) -> list[str]:
    """Cut at "|", but not inside of quotes."""
    parts, quoted = [""], False
    for letter in text:
        quoted ^= letter == "'"
        if letter == "|" and not quoted:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _alternative(text: str) -> Alternative:
    flag, guard, rest = text.partition("?")
    if guard and _PATH.fullmatch(flag.strip()):
        return Guarded(flag.strip(), _alternative(rest.strip()))
    if text.startswith("="):
        return _Parser(text[1:]).whole()
    if text not in _CONSTANTS and _PATH.fullmatch(text):
        return Key(text)
    match literal := _Parser(text).whole():
        case Constant() | Items() | Unary("-", Constant()):
            return literal
    raise BadValue(f"{text!r} is neither a config key nor a literal; expressions begin with =")


class _Parser:
    """Recursive descent over the tokens of one expression."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._at = 0
        self._depth = 0

    def whole(self) -> Expr:
        tree = self._expression()
        if self._at < len(self._tokens):
            raise BadValue(f"{self._text!r}: did not expect {self._peek()!r}")
        return tree

    def _expression(self) -> Expr:
        self._descend()
        value = self._either()
        if self._take("if"):
            test = self._either()
            self._expect("else")
            value = Condition(test, value, self._expression())
        self._depth -= 1
        return value

    def _either(self) -> Expr:
        left = self._both()
        while self._take("or"):
            left = Binary("or", left, self._both())
        return left

    def _both(self) -> Expr:
        left = self._negated()
        while self._take("and"):
            left = Binary("and", left, self._negated())
        return left

    def _negated(self) -> Expr:
        return self._prefixed("not", self._negated) or self._compared()

    def _compared(self) -> Expr:
        left = self._sum()
        if self._take("not"):
            self._expect("in")
            return Unary("not", Binary("in", left, self._sum()))
        if operator := self._take("==", "!=", "<", "<=", ">", ">=", "in"):
            return Binary(operator, left, self._sum())
        return left

    def _sum(self) -> Expr:
        left = self._product()
        while operator := self._take("+", "-"):
            left = Binary(operator, left, self._product())
        return left

    def _product(self) -> Expr:
        left = self._signed()
        while operator := self._take("*", "/", "//", "%"):
            left = Binary(operator, left, self._signed())
        return left

    def _signed(self) -> Expr:
        return self._prefixed("-", self._signed) or self._power()

    def _power(self) -> Expr:
        base = self._atom()
        return Binary("**", base, self._signed()) if self._take("**") else base

    def _atom(self) -> Expr:
        value = self._start_of_atom()
        while self._take("["):
            value = Subscript(value, self._expression())
            self._expect("]")
        return value

    def _start_of_atom(self) -> Expr:
        if self._take("("):
            value = self._expression()
            self._expect(")")
            return value
        if self._take("["):
            return Items(tuple(self._items()))
        kind, token = self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")
        self._at += 1
        match kind:
            case "number":
                return Constant(float(token) if re.search(r"[.eE]", token) else int(token))
            case "text":
                return Constant(token[1:-1])
            case "name" if token in _CONSTANTS:
                return Constant(_CONSTANTS[token])
            case "name" if token not in _WORDS:
                return Name(token)
        raise BadValue(f"{self._text!r}: expected a value, got {token or 'the end'!r}")

    def _items(self) -> list[Expr]:
        found: list[Expr] = []
        while not self._take("]"):
            if found:
                self._expect(",")
            found.append(self._expression())
        return found

    def _prefixed(self, operator: str, operand: Callable[[], Expr]) -> Expr | None:
        if not self._take(operator):
            return None
        self._descend()
        value = Unary(operator, operand())
        self._depth -= 1
        return value

    def _descend(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise BadValue(f"is nested more than {MAX_DEPTH} deep")

    def _peek(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def _take(self, *wanted: str) -> str:
        """Move past the next token if it is one of `wanted`; return it, or ""."""
        if self._peek() not in wanted:
            return ""
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _expect(self, wanted: str) -> None:
        if not self._take(wanted):
            got = self._peek() or "the end"
            raise BadValue(f"{self._text!r}: expected {wanted!r}, got {got!r}")


def _tokens(text: str) -> list[tuple[str, str]]:
    found, at = [], 0
    while at < len(text.rstrip()):
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]  # matches always
        token = _TOKEN.match(text, at)
        if token is None:
            raise BadValue(f"{text!r}: cannot read {text[at:]!r}")
        found.append((token.lastgroup or "", token.group()))
        at = token.end()
    return found
