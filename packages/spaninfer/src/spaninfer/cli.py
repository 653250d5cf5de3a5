"""The command line: thin; every command calls the package that does the work."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from spaninfer_engine import Engine, EngineConfig, EngineState, StepTimeout, WeightsTimeout
from spaninfer_engine.tools import Parts, TensorError, build
from spaninfer_engine.tools import convert as convert_weights
from spaninfer_engine.tools import tune as tune_kernels
from spaninfer_serving.tools import hash_of, traits_of

from spaninfer import hub, options, serve_options, show
from spaninfer.bench.group import app as bench_app
from spaninfer.chat import Chat
from spaninfer.doctor import examine
from spaninfer.fit import PlannedFor, Wanted, planned
from spaninfer.grouped import spread
from spaninfer.loading import loading
from spaninfer.mistyped import Commands
from spaninfer.option_groups import Completion, Compute, Deployment, Quantisation, Sampling
from spaninfer.spec_commands import app as spec_app
from spaninfer.threads import described_processes, keep_to

CLOSE_S = 5.0  # for a step or weights under way when a server has drained; then they hang

app = typer.Typer(
    name="spaninfer",
    cls=Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="""Run language models from the Hugging Face hub, a folder of weights, a GGUF file, or the
bundled demo.

[bold]spaninfer serve[/bold]                       an OpenAI server and a playground

[bold]spaninfer serve ./Qwen3-0.6B[/bold]          the same with yours

[bold]spaninfer serve Qwen/Qwen3-0.6B[/bold]       the same with one of the hub, fetched once

[bold]spaninfer chat[/bold]                        talk to it in the terminal

[bold]spaninfer generate demo "Once upon"[/bold]   complete a prompt and exit
""",
)
app.add_typer(spec_app, name="spec")
app.add_typer(bench_app, name="bench")


def _loaded(config: EngineConfig, deployment: Deployment | None = None) -> Parts:
    """Load a model where it is deployed, or where this process is, showing how far it has come."""
    if deployment is not None:
        deployment.keep_to_threads()
    config = replace(config, model=hub.locate_or_pull(str(config.model)))
    with loading() as bar:
        return build(config, bar)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"spaninfer {version('spaninfer')}")
        raise typer.Exit


@app.callback()
def main(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Hold what all commands share."""


@app.command()
@spread
def serve(
    context: typer.Context,
    model: options.Model = "demo",
    *,
    server: serve_options.Server,
    engine: serve_options.ServedEngine,
) -> None:
    """Serve a model to OpenAI clients, with a playground at the same address."""
    with show.errors_as_sentences():
        settings = server.settings(engine.deployment.threads)
        config = engine.config(model, server.names)
        engine.deployment.keep_to_threads()  # before the first process is started
        # FastAPI with it: as much as all other commands take
        from spaninfer_serving import Supervised, api_server_processes, bind
        from spaninfer_serving import serve as serve_until_signal

        supervised = None if context.obj is None else Supervised(context.obj)
        if supervised is not None:
            settings = replace(settings, engine_restarts=supervised.num_restarts)
        with (
            (bind if supervised is None else supervised.bind)(settings) as listener,
            api_server_processes(settings, listener) as processes,
            _ended(Engine(_loaded(config))) as running,
        ):
            show.decisions(running.resolved)
            show.note(traits_of(running.template, running.tokenizer, settings.tool_parser).summary)
            show.note(described_processes(settings.api_servers))

            def ready(url: str) -> None:
                show.addresses(url, engine=running, settings=settings)
                if supervised is not None:
                    supervised.note_ready()

            serve_until_signal(running, settings, ready, listener, processes)


@contextmanager
def _ended(engine: Engine) -> Iterator[Engine]:
    """Close the engine of a server behind the block; exit with 1 where it has failed."""
    try:
        yield engine
    finally:
        try:
            engine.close(patience_s=CLOSE_S)
        except (StepTimeout, WeightsTimeout) as hung:
            show.failure(str(hung))
            os._exit(1)  # an orderly exit would wait for what hangs
    if engine.stats().state is EngineState.FAILED:
        show.failure("the engine failed; see the output above")
        raise typer.Exit(1)


@app.command()
@spread
def generate(
    model: options.Model,
    prompt: Annotated[str, typer.Argument(help="The text to continue; - reads standard input.")],
    *,
    sampling: Completion,
    deployment: Deployment,
    tune: options.Tune = None,
    spec: options.Spec = None,
) -> None:
    """Complete a prompt, printing the text as it comes."""
    text = sys.stdin.read() if prompt == "-" else prompt
    config = EngineConfig(model=model, **deployment.asked, tune=tune, spec=spec)
    with show.errors_as_sentences(), Engine(_loaded(config, deployment)) as engine:
        asked = sampling.over(engine, sampling.form.read())
        _, queue = engine.start_request(text, asked)
        typer.echo(text, nl=False)
        try:
            for output in queue:
                typer.echo(output.text, nl=False)
                if output.error is not None:
                    raise output.error
        finally:  # after Ctrl-C, too, a line is a line
            typer.echo()


@app.command()
@spread
def chat(
    model: options.Model = "demo",
    *,
    system: Annotated[str | None, typer.Option(help="The system prompt.")] = None,
    sampling: Sampling,
    deployment: Deployment,
    spec: options.Spec = None,
    chat_template: options.ChatTemplate = None,
) -> None:
    """Talk to a model in the terminal. Ctrl-C stops an answer, /bye or Ctrl-D ends the chat."""
    config = EngineConfig(model=model, **deployment.asked, spec=spec, chat_template=chat_template)
    with show.errors_as_sentences(), Engine(_loaded(config, deployment)) as engine:
        Chat(engine, sampling.over(engine), system).run()


@app.command()
@spread
def info(
    model: options.Model = "demo",
    *,
    program: Annotated[
        bool, typer.Option("--program", help="Also list the operations of a step.")
    ] = False,
    deployment: Deployment,
    batch_invariant: options.BatchInvariant = False,
    spec: options.Spec = None,
) -> None:
    """Print a model's sizes, what its weights take, and what fits beside them on this machine."""
    config = EngineConfig(
        model=model, **deployment.asked, batch_invariant=batch_invariant, spec=spec
    )
    with show.errors_as_sentences():
        parts = _loaded(config, deployment)
        show.model(parts)
        if program:
            typer.echo(parts.listing)


@app.command()
@spread
def fit(
    model: options.Model = "demo",
    *,
    on: PlannedFor,
    requests: Annotated[
        int | None, typer.Option(min=1, help="Number of concurrent requests that must fit.")
    ] = None,
    max_len: Annotated[
        int | None, typer.Option(min=1, help="Tokens of prompt and answer of each request.")
    ] = None,
    compute: Compute,
    spec: options.Spec = None,
) -> None:
    """Say whether a model fits, and how many requests of which length fit beside its weights.

    Nothing is loaded: config.json is enough, also of a model of the hub. Exits with 1 where
    nothing fits, or less than was requested.
    """
    with show.errors_as_sentences():
        path = hub.locate_or_pull(model, with_weights=False)
        asked = EngineConfig(model=path, **compute.asked, spec=spec)
        found = planned(asked, on, () if max_len is None else (max_len,))
        if not show.fit(found, Wanted(requests, max_len)):
            raise typer.Exit(1)


@app.command()
@spread
def convert(
    model: Annotated[
        str,
        typer.Argument(help="A Hugging Face folder, a GGUF or llama2.c file, or a bundled model."),
    ],
    out: Annotated[Path, typer.Argument(help="The folder to write: new, or empty.")],
    *,
    quantisation: Quantisation,
    report: Annotated[
        bool, typer.Option("--report", help="Print the quantisation error of every tensor.")
    ] = False,
    threads: options.Threads = None,
    spec: options.Spec = None,
) -> None:
    """Pack weights once: for backend cpu, which then maps them, or as fp8 or w8a8 for any."""
    with show.errors_as_sentences():
        if threads is not None:
            keep_to(threads)
        found = hub.locate_or_pull(model)
        errors: list[TensorError] = []
        with loading() as bar:
            folder = convert_weights(
                found,
                out,
                **quantisation.asked,
                spec=spec,
                progress=bar,
                report=errors.append,
            )
        show.packing_errors(errors, every=report)
        typer.echo(folder)


@app.command()
@spread
def tune(
    model: options.Model = "demo",
    *,
    quantisation: Quantisation,
    threads: options.Threads = None,
    spec: options.Spec = None,
) -> None:
    """Time the CPU's kernels on a model's weights; later starts use the fastest."""
    with show.errors_as_sentences():
        if threads is not None:
            keep_to(threads)
        config = EngineConfig(
            model=hub.locate_or_pull(model),
            backend="cpu",
            **quantisation.asked,
            tune=True,
            spec=spec,
        )
        with loading() as bar:
            timed = tune_kernels(config, bar)
        show.tuning(timed)


@app.command("hash-key")
def hash_key(
    key: Annotated[str | None, typer.Argument(help="The key; default: a new random one.")] = None,
) -> None:
    """Print a key and its SHA-256, for --key-file and --admin-key-file."""
    made = secrets.token_urlsafe(32) if key is None else key
    typer.echo(f"key:    {made}\nsha256: {hash_of(made).hex()}")


@app.command()
def doctor() -> None:
    """Say what is installed, what is wrong, and what to do about it."""
    if not show.findings(examine()):
        raise typer.Exit(1)


@app.command()
def pull(
    name: Annotated[str, typer.Argument(help=f"A model of the hub: {hub.FORM}.")],
) -> None:
    """Fetch a model from the Hugging Face hub into its local cache, or update it."""
    with show.errors_as_sentences():
        typer.echo(hub.pull(hub.HubName.of(name)))


@app.command("list")
def list_models() -> None:
    """List the models in the hub's local cache."""
    show.cached(hub.cached_models())


@app.command()
def remove(
    name: Annotated[
        str, typer.Argument(help="A name printed by 'list'; @REVISION removes that revision only.")
    ],
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a model from the hub's local cache."""
    with show.errors_as_sentences():
        found = hub.find_revisions(hub.HubName.of(name))
        size = f"{sum(each.size_bytes for each in found) / 1e6:,.0f} MB"
        if not yes:
            typer.confirm(f"Delete {name} from the cache, {size}?", abort=True)
        typer.echo(f"{hub.remove(found) / 1e6:,.0f} MB freed")
