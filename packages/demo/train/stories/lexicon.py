"""The words of lexicon.txt as tables, and names made up of syllables."""

from random import Random

from .template import HERE, lines

Row = tuple[str, ...]


def _read() -> dict[str, tuple[Row, ...]]:
    tables: dict[str, list[Row]] = {}
    rows: list[Row] = []
    for line in lines(HERE / "lexicon.txt"):
        if line.startswith("== "):
            rows = tables.setdefault(line[3:].split(":")[0], [])
        else:
            rows.append(tuple(column.strip() for column in line.split("|")))
    return {name: tuple(found) for name, found in tables.items()}


TABLES = _read()
COLUMNS = {name: tuple(zip(*rows, strict=True)) for name, rows in TABLES.items()}

_ONSETS = "b br c cl d dr f fl g gr h j k l m n p pl qu r s sl sn st t th tr v w z zh".split()
_VOWELS = "a e i o u ai ee oo".split()
_ENDINGS = "b bin bo ck del do la lin lo m mo n na ndle p ra rik s tle to x zo".split()


def word(table: str, rng: Random) -> str:
    """Return the first column of a random row."""
    column: Row = COLUMNS[table][0]
    return column[int(rng.random() * len(column))]


def row(table: str, rng: Random) -> Row:
    """Return a random row."""
    rows = TABLES[table]
    return rows[int(rng.random() * len(rows))]


def invented(rng: Random) -> str:
    """Return a word that is in no dictionary, so that a model learns to copy what it is given."""
    syllables = [rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(rng.choice((1, 1, 2)))]
    return "".join(syllables) + rng.choice(_ENDINGS)
