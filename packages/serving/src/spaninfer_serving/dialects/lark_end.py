"""Lark grammars whose sentences end at a closing mark.

llguidance reads the longest text that a terminal matches. Behind a grammar that may end in free
text, such as /(?s:.*)/, a closing mark would be a part of that text, and the answer have no end. A
rule with a suffix ends at the first place where the suffix follows its terminal. So each rule gets
a second form, in which the last terminal of a sentence has the mark behind it:

    start: "say" TEXT             start__end: "say" marked_0
                                  marked_0[suffix="/p>"]: MARKED_0
                                  MARKED_0: TEXT & LONGER_0
                                  LONGER_0: TEXT /</

Only a text that may go on with the mark's first character, and end there, has this form: elsewhere
the mark stands for itself, since a lexer that waits for a suffix forgets shorter texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

# The head of a statement of Lark: a rule's or terminal's name, or a directive.
_HEAD = re.compile(
    r"^[ \t]*(?:%(?:ignore|import|declare|override|extend|llguidance)\b"
    r"|[?!]?(?P<name>\w+)(?:\.-?\d+)?(?P<options>[ \t]*\[[^\]\n]*\])?[ \t]*:)",
    re.MULTILINE,
)
_TOKEN = re.compile(
    r"(?P<skip>\s+|//[^\n]*|->\s*\w+)"
    r'|(?P<literal>"(?:\\.|[^"\\\n])*"i?|/(?:\\.|[^/\\\n])+/[a-z]*)'
    r"|(?P<name>\w+)|(?P<mark>[()\[\]|?*+])|(?P<count>~\s*\d+(?:\.\.\d+)?|\{\d*,?\d*\})"
)
_COUNTS = {"?": (0, "1"), "*": (0, ""), "+": (1, "")}
_START, _WHOLE = "start", "start__whole"

# Brackets inside of each other, and characters of the second forms: llguidance takes 100,000 of a
# grammar, and rules of many optional parts make more than their square.
MAX_DEPTH, MAX_CHARS = 50, 50_000


class _Unknown(Exception):
    """A part of a rule that is not read here, such as a schema."""


@dataclass(slots=True)
class _Item:
    """A literal, a name or a group of alternatives, and how often it may stand there."""

    atom: str = ""
    group: list[list[_Item]] | None = None
    repeats: str = ""

    @property
    def once(self) -> str:
        """The item without its repetition."""
        if self.group is None:
            return _WHOLE if self.atom == _START else self.atom
        return f"({' | '.join(_text(sequence) for sequence in self.group)})"


def ending_at(definition: str, mark: str) -> str | None:
    """Return a grammar of what another allows, with a mark behind it; None where it is not read.

    Behind a rule that is not read, the mark stands as it is.
    """
    heads = list(_HEAD.finditer(definition))
    stops = [*(head.start() for head in heads[1:]), len(definition)]
    made = _Rules(mark)
    kept = []
    for head, stop in zip(heads, stops, strict=True):
        name, body = head["name"], definition[head.end() : stop]
        is_rule = name is not None and not name.isupper()
        if not (is_rule and made.add(name, body, head["options"])):
            kept.append(definition[head.start() : stop])
    if _START not in made.known or any(re.search(rf"\b{_START}\b", each) for each in kept):
        return None
    try:
        return "\n".join([*made.lines(), *kept])
    except _Unknown:
        return None


@dataclass(slots=True)
class _Rules:
    """Rules as they were read, and the forms that end in the mark as they are needed."""

    mark: str
    known: dict[str, list[list[_Item]]] = field(default_factory=dict)
    empty: set[str] = field(default_factory=set)  # rules that may be
    num_chars: int = 0  # of the second forms

    def add(self, name: str, body: str, options: str | None) -> bool:
        """Return whether a rule is understood, and remember it."""
        try:
            if options is None:
                self.known[name] = _Reader(body).read()
        except _Unknown:
            pass
        return name in self.known

    def lines(self) -> Iterator[str]:
        """Yield the rules: those that were read, and those that end in the mark."""
        yield f"{_START}: {_WHOLE} {self._quoted} | {_START}__end"
        for name, choices in self.known.items():
            yield f"{_WHOLE if name == _START else name}: {_choice(map(_text, choices))}"
        self._find_empty()
        ends: dict[str, int] = {}
        for name, choices in self.known.items():
            yield f"{name}__end: {self._end(choices, ends)}"
        first, rest = re.escape(self.mark[0]).replace("\\\n", "\\n"), self.mark[1:]
        for terminal, at in ends.items():
            yield f"marked_{at}[suffix={_quoted(rest)}]: MARKED_{at}"
            yield f"MARKED_{at}: {terminal} & LONGER_{at}"
            yield f"LONGER_{at}: {terminal} /{first}/"

    @property
    def _quoted(self) -> str:
        return _quoted(self.mark)

    def _end(self, choices: Sequence[Sequence[_Item]], ends: dict[str, int]) -> str:
        """Return an expression for the alternatives that end in the mark."""
        made = []
        for sequence in choices:
            for at in reversed(range(len(sequence))):
                before = _text(sequence[:at])
                made.append(f"{before} {self._end_of(sequence[at], ends)}".lstrip())
                self.num_chars += len(made[-1])
                if self.num_chars > MAX_CHARS:
                    raise _Unknown
                if not self._may_be_empty(sequence[at]):
                    break
            else:
                made.append(self._quoted)
        return _choice(made)

    def _end_of(self, item: _Item, ends: dict[str, int]) -> str:
        least, most = _count(item.repeats)
        fewer = f"{{{max(least - 1, 0)},{int(most) - 1 if most else ''}}}"
        before = "" if most == "1" else f"{item.once}{fewer} "
        if item.group is not None:
            return f"{before}({self._end(item.group, ends)})"
        if item.atom in self.known:
            return f"{before}{item.atom}__end"
        if item.atom[0] == "/" or item.atom.isupper():
            return f"{before}marked_{ends.setdefault(item.atom, len(ends))}"
        return f"{before}{item.atom} {self._quoted}"

    def _find_empty(self) -> None:
        """Find the rules that may be empty: those whose parts may be, until there are no more."""
        num_known = -1
        while num_known < len(self.empty):
            num_known = len(self.empty)
            self.empty |= {name for name, each in self.known.items() if self._any_empty(each)}

    def _any_empty(self, choices: Sequence[Sequence[_Item]]) -> bool:
        return any(all(map(self._may_be_empty, sequence)) for sequence in choices)

    def _may_be_empty(self, item: _Item) -> bool:
        if _count(item.repeats)[0] == 0 or item.atom == '""' or item.atom in self.empty:
            return True
        return item.group is not None and self._any_empty(item.group)


class _Reader:
    """Reads the body of a rule."""

    def __init__(self, body: str) -> None:
        self._tokens: list[str] = []
        at = 0
        while at < len(body):
            found = _TOKEN.match(body, at)
            if found is None:
                raise _Unknown
            if found["skip"] is None:
                self._tokens.append(found[0])
            at = found.end()
        self._tokens.reverse()

    def read(self) -> list[list[_Item]]:
        """Return the alternatives of the rule."""
        choices = self._choices()
        if self._tokens:
            raise _Unknown
        return choices

    def _choices(self, depth: int = 0) -> list[list[_Item]]:
        if depth > MAX_DEPTH:
            raise _Unknown
        choices: list[list[_Item]] = [[]]
        while self._tokens and self._tokens[-1] not in (")", "]"):
            token = self._tokens.pop()
            if token == "|":
                choices.append([])
            elif token[0] in "?*+~{":
                if not choices[-1] or choices[-1][-1].repeats:
                    raise _Unknown
                choices[-1][-1].repeats = token
            elif token in ("(", "["):
                group = self._choices(depth + 1)
                if not self._tokens or self._tokens.pop() != {"(": ")", "[": "]"}[token]:
                    raise _Unknown
                choices[-1].append(_Item("", group, "" if token == "(" else "?"))
            else:
                choices[-1].append(_Item(token))
        return choices


def _count(repeats: str) -> tuple[int, str]:
    """Return how often at least, and at most: "" where that has no limit."""
    if repeats[:1] not in ("~", "{"):
        return _COUNTS.get(repeats, (1, "1"))
    least, comma, most = re.sub(r"[~{}\s]", "", repeats).replace("..", ",").partition(",")
    return int(least or 0), most if comma else least


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _choice(texts: Iterator[str] | Sequence[str]) -> str:
    return " | ".join(text or '""' for text in texts)


def _text(sequence: Sequence[_Item]) -> str:
    return " ".join(f"{item.once}{item.repeats}" for item in sequence)
