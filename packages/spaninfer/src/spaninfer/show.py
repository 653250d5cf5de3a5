"""Output of the command line: progress, the start-up table, models, specs, failures."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from spaninfer_engine import Engine, EngineError, Resolved
from spaninfer_engine.tools import (
    Capacity,
    Parts,
    Task,
    TensorError,
    Tuning,
    TuningRow,
    cache_folder,
    check_spec,
    is_zero_bias,
    list_specs,
    open_checkpoint,
    show_spec,
)
from spaninfer_serving import Settings
from spaninfer_serving.tools import is_loopback

from spaninfer.doctor.finding import Finding, Verdict
from spaninfer.fit import Wanted
from spaninfer.hub.cache import CachedModel
from spaninfer.network import reachable_urls
from spaninfer.unwritable import Diagnostics

_out = Console()
_err = Diagnostics()
_PIPE_WIDTH = 160  # of a table whose lines another program searches


@contextmanager
def errors_as_sentences() -> Iterator[None]:
    """Print what the user can act on without a traceback, and exit with 2; warnings likewise."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            yield
        except EngineError as error:
            failure(str(error))
            raise typer.Exit(2) from error


def _show_warning(message: Warning | str, *_place: object, **_file: object) -> None:
    warning(str(message))


def failure(sentence: str) -> None:
    """Print what went wrong, for a person."""
    _err.print(f"[bold red]error:[/] {escape(sentence)}", soft_wrap=True, highlight=False)


def warning(sentence: str) -> None:
    """Print what may be wrong, for a person."""
    _err.print(f"[bold yellow]warning:[/] {escape(sentence)}", soft_wrap=True, highlight=False)


def note(sentence: str) -> None:
    """Print how far something has come, for a person."""
    _err.print(escape(sentence), style="dim", soft_wrap=True, highlight=False)


def decisions(resolved: Resolved) -> None:
    """Print what was decided, and why."""
    _err.print(_decisions(resolved))


def _decisions(resolved: Resolved) -> Table:
    title = escape(f"{resolved.name} ({resolved.architecture})")
    table = Table(title=title, title_justify="left")
    table.add_column("what", style="bold")
    table.add_column("decided")
    table.add_column("because", style="dim")
    for decision in resolved.decisions:
        table.add_row(*map(escape, (decision.what, decision.value, decision.why)))
    return table


def addresses(url: str, engine: Engine, settings: Settings) -> None:
    """Print where a person and a program find the server, and who else does."""
    key = """ -H "Authorization: Bearer $SPANINFER_API_KEY\"""" if settings.needs_key else ""
    path, body = next(TRIES[task] for task in TRIES if task in engine.tasks)
    names = ", ".join((engine.resolved.name, *settings.further_names))
    said = Text.assemble(  # no markup: http://[::1]:8000 would be some
        ("ready", "bold green"),
        "  playground  ",
        (f"{url}/", f"link {url}"),
        f"\n       OpenAI API  {url}/v1   (model: {names})\n"
        f"       metrics     {url}/metrics\n"
        f"       try         curl {url}{path} -H 'Content-Type: application/json'{key} "
        f"-d '{body}'\n"
        f"{_reach(url, settings)}"
        "       Ctrl-C stops; running requests are finished first",
    )
    _err.print(said, soft_wrap=True)


TRIES: Mapping[Task, tuple[str, str]] = {
    "generate": ("/v1/completions", '{"prompt": "Once upon a time", "max_tokens": 40}'),
    "embed": ("/v1/embeddings", '{"input": "Once upon a time"}'),
    "score": ("/rerank", '{"query": "Once upon a time", "documents": ["a fable", "a recipe"]}'),
    "classify": ("/classify", '{"input": "Once upon a time"}'),
}
"""What to try first of a server whose model is for a task: a path and a body."""


def _reach(url: str, settings: Settings) -> str:
    """Return from where a server can be reached, and by whom; nothing where only from here."""
    if is_loopback(settings.host):
        return ""
    others = " ".join(f"{other}/" for other in reachable_urls(settings.host, url))
    who = "who has a key" if settings.needs_key else "anyone: no key is required"
    return f"       network     {others or settings.host}\n       open to     {who}\n"


_STYLES = {Verdict.OK: "green", Verdict.NOTE: "yellow", Verdict.WRONG: "bold red"}


def findings(found: Iterable[Finding]) -> bool:
    """Print findings as they come; return whether nothing is wrong."""
    is_well = True
    for each in found:
        is_well &= each.verdict is not Verdict.WRONG
        line = Text.assemble(
            (f"{each.verdict.value:<6}", _STYLES[each.verdict]),
            (f"{each.what:<12}", "bold"),
            each.seen,
        )
        _out.print(line, soft_wrap=True)
        if each.way_out:
            _out.print(Text(f"{'':<18}{each.way_out}"), soft_wrap=True)
    return is_well


def cached(models: Sequence[CachedModel]) -> None:
    """Print the models of the hub's cache, and where it is."""
    table = Table(title=escape(f"models in {cache_folder()}"), title_justify="left")
    table.add_column("name", style="bold")
    table.add_column("revision")
    table.add_column("size", justify="right")
    table.add_column("fetched", style="dim")
    for each in models:
        revision = f"{each.revision[:7]} {' '.join(each.refs)}".strip()
        size, day = f"{each.size_bytes / 1e6:,.0f} MB", f"{each.modified:%Y-%m-%d}"
        table.add_row(*map(escape, (each.repo, revision, size, day)))
    _out.print(table if models else Text(f"no models in {cache_folder()}"), soft_wrap=True)


def model(parts: Parts) -> None:
    """Print the sizes of a model, what its weights take, and what was decided for this machine."""
    made, taken = parts.model, parts.weight_bytes / 2**20
    table = _decisions(parts.resolved)
    table.add_section()
    alone = ", without the tower's" if parts.towers else ""
    table.add_row("weights take", f"{taken:,.1f} MiB", f"as they are held in memory{alone}")
    table.add_row("hidden size", str(made.hidden))
    table.add_row("vocabulary", f"{made.vocab:,} tokens")
    for group in made.groups:
        window = f", window {group.window}" if group.window else ""
        held = f"{group.kv_heads} KV heads of {group.key_size} + {group.value_size}{window}"
        if group.is_index:
            held = f"keys of {group.key_size} of indexers, for sparse attention"
        if (state := group.state) is not None:
            held = f"a state of {state.heads} x {state.key_size} x {state.value_size} per request"
        table.add_row(f"cache group {group.index}", f"{len(group.layers)} layers", held)
    _out.print(table)


def fit(found: Capacity, wanted: Wanted) -> bool:
    """Print what fits of a model; return whether anything does, or what was requested."""
    table = Table(
        title=escape(
            f"{found.architecture}: {found.parameters:,} parameters; KV cache {found.kv_dtype}, "
            f"{found.token_bytes / 1024:,.1f} KiB per token"
            + (f", {_size(found.state_bytes)} per request" if found.state_bytes else "")
        ),
        title_justify="left",
    )
    table.add_column("weights", style="bold")
    for column in ("take", "a step", "left for KV cache"):
        table.add_column(column, justify="right")
    for length in found.rooms[0].requests:
        table.add_column(f"requests of {length:,}", justify="right")
    table.add_column("longest", justify="right")
    for room in found.rooms:
        cells = [f"{count:,}" if count else "-" for count in room.requests.values()]
        sizes = map(_size, (room.weight_bytes, room.step_bytes, max(0, room.kv_bytes)))
        longest = f"{room.longest:,}" if room.longest else "-"
        table.add_row(room.quantize or "as they are", *sizes, *cells, longest)
    _out.print(table)
    fitting = [room for room in found.rooms if wanted.fits(room)]
    if not fitting:
        failure(f"no room for {wanted}; add memory, or plan for fewer or shorter ones")
        return False
    ways = [f"--quantize {each.quantize}" if each.quantize else "as it is" for each in fitting]
    _out.print(f"room for {wanted}: {', or '.join(ways)}", soft_wrap=True, highlight=False)
    return True


def _size(num_bytes: int) -> str:
    """Return a number of bytes in MiB, or in GiB from one on.

    >>> _size(3 << 20), _size(3 << 29)
    ('3.0 MiB', '1.5 GiB')
    """
    unit, shift = ("GiB", 30) if num_bytes >= 1 << 30 else ("MiB", 20)
    return f"{num_bytes / (1 << shift):,.1f} {unit}"


def packing_errors(errors: Sequence[TensorError], *, every: bool) -> None:
    """Print what quantising changed of all tensors together, and with `every` of each of them."""
    if not errors:
        return
    total = sum(each.num_weights for each in errors)
    bits = sum(each.num_weights * each.bits for each in errors) / total
    square = sum(each.num_weights * each.relative_rms**2 for each in errors) / total
    worst = max(errors, key=lambda each: each.relative_rms)
    note(
        f"{len(errors)} tensors quantised to {bits:.2f} bits per weight; root mean square error "
        f"{square**0.5:.3%} of the weights', most in {worst.name} ({worst.relative_rms:.3%})"
    )
    if not every:
        return
    table = Table(title="what quantising changed", title_justify="left")
    table.add_column("tensor", style="bold", overflow="fold")
    for column in ("shape", "bits", "RMS error", "largest error"):
        table.add_column(column, justify="right")
    for each in errors:
        shape = " x ".join(map(str, each.shape))
        error = f"{each.relative_rms:.3%}", f"{each.largest:.3%}"
        names = each.name.replace(" + ", "\n")
        table.add_row(*map(escape, (names, shape, f"{each.bits:.3f}", *error)))
    _err.print(table)


def tuning(timed: Tuning) -> None:
    """Print the times of kernels, and which of them are used."""
    rows = timed.rows
    counts = sorted({count for row in rows for count in row.seconds or ()})
    table = Table(title="GEMM kernels, milliseconds by number of tokens", title_justify="left")
    table.add_column("weights", style="bold")
    table.add_column("kernels")
    for count in counts:
        table.add_column(str(count), justify="right")
    table.add_column("used for")
    for row in rows:
        times = row.seconds or {}
        used = [word for word, is_used in _uses(row) if is_used]
        name = f"{row.name} (default)" if row.is_default else row.name
        cells = [f"{times[count] * 1e3:.3f}" if count in times else "-" for count in counts]
        table.add_row(*map(escape, (row.format, name, *cells, ", ".join(used))))
    _out.print(table)
    if not counts:
        note("nothing was timed: this CPU has one kernel for these weights")
    if counts and any(row.seconds is None for row in rows):
        note("-: left out, because the time was over or the results differ")
    for threads, seconds in timed.threads.items():
        each = ", ".join(f"{seconds[count] * 1e3:.3f}" for count in sorted(seconds))
        of = "thread" if threads == 1 else "threads"
        _out.print(f"chosen kernels on {threads} {of}: {each} ms", highlight=False)
    if len(timed.threads) > 1:
        note("if fewer threads are faster, start with --threads")


def _uses(row: TuningRow) -> Iterator[tuple[str, bool]]:
    yield "few tokens", row.for_few
    yield "many tokens", row.for_many


def specs() -> None:
    """Print the architectures that are known."""
    table = Table()
    for column in ("name", "kind", "Hugging Face classes", "checked with"):
        table.add_column(column, overflow="fold")  # names are searched for: none is cut short
    for row in list_specs():
        table.add_row(row.name, row.kind, "\n".join(row.hf), "\n".join(row.checked))
    (_out if _out.is_terminal else Console(width=_PIPE_WIDTH)).print(table)


def spec(name: str) -> None:
    """Print one architecture as a spec file that leaves nothing unsaid."""
    shown = show_spec(name)
    hf = ", ".join(f'"{name}"' for name in shown.hf)
    lines = [f"# {shown.name}", f"hf = [{hf}]", f'kind = "{shown.kind}"']
    for section in shown.sections:
        said = [f"{row.key} = {row.value}" for row in section.rows]
        width = min(max(map(len, said)), 60)  # few are longer; they would push all comments aside
        lines += ["", f"[{section.name}]"]
        lines += [
            f"{text:{width}}  # {row.source}{': ' if row.says else ''}{row.says}"
            for text, row in zip(said, section.rows, strict=True)
        ]
    _print_plain("\n".join(lines))


def check(file: Path, checkpoint: Path | None) -> bool:
    """Print what is wrong with a spec file; return whether nothing is."""
    if checkpoint is None:
        findings = check_spec(file)
    else:
        with open_checkpoint(checkpoint) as opened:
            reader = opened.reader
            shapes = {name: reader.shape(name) for name in reader.names}
            findings = check_spec(file, opened.config, shapes, partial(is_zero_bias, reader))
    for finding in findings:
        _print_plain(f"{finding.level}: {finding.text}")
    is_right = all(finding.level != "error" for finding in findings)
    if is_right:
        _print_plain(f"{file}: no errors")
    return is_right


def _print_plain(text: str) -> None:
    """Print text as it is: no colours, no markup, no line breaks of ours."""
    _out.print(text, highlight=False, markup=False, soft_wrap=True)
