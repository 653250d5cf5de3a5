"""The commands below `spaninfer bench`. Records go to standard output, all else to the other."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from spaninfer_engine import ConfigError, Engine, EngineConfig
from spaninfer_engine.tools import BACKENDS, build, this_machine

from spaninfer import options, show
from spaninfer.bench import engine as engine_bench
from spaninfer.bench.arguments import (
    Bars,
    GgufFiles,
    Model,
    Only,
    Runs,
    asked_of,
    chosen,
    engine_on,
)
from spaninfer.bench.compare import compare
from spaninfer.bench.group import HELP
from spaninfer.bench.kv_tiers import measure_kv_tiers
from spaninfer.bench.media_commands import app as media_app
from spaninfer.bench.options.run import FOR_CPUS, FOR_GPUS, OPTIONS, Rounds, measure_options
from spaninfer.bench.options.sides import EngineSide, ServerSide, Side
from spaninfer.bench.plot import draw
from spaninfer.bench.records import circumstances, read
from spaninfer.bench.serve.mock_model import NAME as MOCK
from spaninfer.bench.serve.mock_model import mock_folder
from spaninfer.bench.serve.run import measure_serve
from spaninfer.bench.serve.workloads import WORKLOADS as SERVE_WORKLOADS
from spaninfer.bench.serve.workloads import places
from spaninfer.bench.server_process import server_process
from spaninfer.bench.shapes import SHAPES, folder_of
from spaninfer.bench.soak.attacks import ATTACKS
from spaninfer.bench.soak.client import Target
from spaninfer.bench.soak.faults import FAULTS
from spaninfer.bench.soak.rounds import records, verdict
from spaninfer.bench.soak.run import Timing, measure_soak
from spaninfer.bench.startup import STARTUPS, measure_startup
from spaninfer.bench.structured import measure_structured, schemas_in
from spaninfer.bench.tables import print_comparison, print_records
from spaninfer.bench.targets import read_bars
from spaninfer.bench.workloads import WORKLOADS
from spaninfer.grouped import spread
from spaninfer.loading import loading
from spaninfer.option_groups import Compute, Deployment, Steps, as_arguments
from spaninfer.threads import keep_to, num_api_servers

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help=HELP,
)

_MAX_LEN = 16384  # of named shapes: what the other engines were given


@app.command("engine")
@spread
def bench_engine(
    model: Model = "qwen2.5-0.5b",
    *,
    only: Only = None,
    runs: Runs = 3,
    weights: options.WhichWeights = "checkpoint",
    deployment: Deployment,
    steps: Steps,
) -> None:
    """Time decoding, first tokens, prefix hits, mixed load and start-up: ids in, ids out."""
    with show.errors_as_sentences(), ExitStack() as stack:
        names = chosen(only, (*STARTUPS, *(workload.name for workload in WORKLOADS)))
        asked: dict[str, Any] = {
            "weights": weights,
            **asked_of(model, stack),
            **deployment.asked,
            **steps.asked,
            "max_waiting": engine_bench.MAX_WAITING,
        }
        if model in SHAPES and deployment.cache.max_len is None:
            asked["max_len"] = _MAX_LEN
        deployment.keep_to_threads()
        if names & set(STARTUPS):  # before this process takes the GPU's memory
            for record in measure_startup(asked, runs, show.note):
                if record["workload"] in names:
                    typer.echo(json.dumps(record))
        if names <= set(STARTUPS):
            return
        with loading() as bar:
            parts = build(EngineConfig(**asked), bar)
        show.decisions(parts.resolved)
        with Engine(parts) as engine:
            for record in engine_bench.measure(engine, names, runs, show.note):
                typer.echo(json.dumps(record))


@app.command("options")
@spread
def bench_options(
    model: Model = "demo",
    *,
    only: Only = None,
    runs: Runs = 5,
    http: Annotated[
        bool, typer.Option("--http", help="Measure through a server on loopback, with streaming.")
    ] = False,
    deployment: Deployment,
) -> None:
    """Time what each sampling option costs those who ask for it, and those who do not."""
    with show.errors_as_sentences(), ExitStack() as stack:
        names = chosen(only, OPTIONS)
        deployment.keep_to_threads()
        with loading() as bar:
            asked = asked_of(model, stack, text=True)  # stop strings and bad words are text
            asked |= deployment.asked
            parts = build(EngineConfig(**asked), bar)
        engine = stack.enter_context(Engine(parts))
        about = {"through": "http" if http else "engine", **engine_bench.described(engine)}
        vocab, device = parts.model.vocab, engine.resolved.device
        side: Side = EngineSide(engine)
        if http:
            engine.close()
            given = as_arguments({**asked, "model": None})
            arguments = [str(asked["model"]), *given]
            process, host, port = stack.enter_context(server_process(arguments))
            side = ServerSide(Target(host, port), process.pid)
            names -= {"mask"}  # a function does not travel
        batch = FOR_GPUS if device.startswith("cuda") else FOR_CPUS
        for fields in measure_options(side, Rounds(batch, vocab, runs), names, show.note):
            record = {"benchmark": "options", **about, **fields, **circumstances(device)}
            typer.echo(json.dumps(record))


@app.command("serve")
@spread
def bench_serve(
    model: Annotated[
        str,
        typer.Argument(
            help="mock (its steps cost next to nothing, so the server itself is timed); a "
            f"published shape with random weights ({', '.join(SHAPES)}); or a model."
        ),
    ] = MOCK,
    *,
    only: Only = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=600, help="Seconds per run.")] = 8,
    runs: Runs = 3,
    api_server_count: options.ApiServerCount = None,
    deployment: Deployment,
) -> None:
    """Time a server beside the same engine without HTTP: requests and streams.

    Both have a KV cache of their own: on a GPU, say how large with --memory.
    """
    with show.errors_as_sentences(), ExitStack() as stack:
        names = chosen(only, tuple(SERVE_WORKLOADS))
        deployment.keep_to_threads()
        if model == MOCK:
            asked: dict[str, Any] = {"model": str(stack.enter_context(mock_folder()))}
        else:
            asked = asked_of(model, stack, text=True)
        asked |= {**deployment.asked, "max_running": places(names)}
        api_servers = num_api_servers(api_server_count)
        for record in measure_serve(asked, names, seconds, runs, show.note, api_servers):
            typer.echo(json.dumps(record))


@app.command("soak")
@spread
def bench_soak(
    model: options.Model = "demo",
    *,
    timing: Timing,
    only: Only = None,
    faults: Annotated[
        bool,
        typer.Option("--faults", help="Also send invalid requests, and kill server processes."),
    ] = False,
    api_server_count: options.ApiServerCount = None,
    deployment: Deployment,
) -> None:
    """Attack a server on loopback beside 32 ordinary clients: what they wait, what is left.

    Exits with 1 where a request was lost, or spans are.
    """
    with show.errors_as_sentences():
        names = chosen(only, (*ATTACKS, *FAULTS) if faults else tuple(ATTACKS))
        deployment.keep_to_threads()
        api_servers = num_api_servers(api_server_count)
        asked = {**deployment.asked, "api_server_count": api_servers}
        served = [model, *as_arguments(asked)]
        found = measure_soak(served, names, timing, show.note)
        about = {
            "model": model,
            "attacks": sorted(names),
            "seconds": timing.seconds,
            "alone_s": timing.alone,
        }
        about |= {name: value for name, value in asked.items() if value}
        place = circumstances(_device_of(deployment.compute))
        for record in records(found, about):
            typer.echo(json.dumps(record | place))
        said = verdict(found)
        show.note(str(said))
        if not said.is_good:
            raise typer.Exit(1)


@app.command("structured")
@spread
def bench_structured(
    model: options.Model = "demo",
    *,
    schemas: Annotated[
        Path | None,
        typer.Option(help="The folder of the JSON-Schema test suite, whose schemas are compiled."),
    ] = None,
    runs: Runs = 3,
    weights: options.WhichWeights = "checkpoint",
    deployment: Deployment,
) -> None:
    """Time structured output: compiling schemas, masks, and steps of guided requests."""
    with (
        show.errors_as_sentences(),
        engine_on(deployment, model=model, weights=weights) as engine,
    ):
        for record in measure_structured(engine, schemas_in(schemas), runs, show.note):
            typer.echo(json.dumps(record))


app.add_typer(media_app)  # without a name: its commands are commands of this one


@app.command("kv-tiers")
@spread
def bench_kv_tiers(
    model: Model = "demo",
    *,
    prompt_len: Annotated[int, typer.Option(min=100, help="Tokens of each prompt.")] = 480,
    runs: Runs = 5,
    folder: Annotated[
        Path | None,
        typer.Option(help="A folder on the disk to measure; default: where temporary files are."),
    ] = None,
    threads: options.Threads = None,
    compute: Compute,
) -> None:
    """Time first tokens after prefix hits in the KV cache, in host memory and on disk."""
    with show.errors_as_sentences(), ExitStack() as stack:
        if threads is not None:
            keep_to(threads)
        asked = {**asked_of(model, stack), **compute.asked}
        for record in measure_kv_tiers(asked, prompt_len, runs, show.note, folder):
            typer.echo(json.dumps(record))


@app.command("kernels")
def bench_kernels(*, only: Only = None) -> None:
    """Time the CUDA kernels, as shares of what memory and tensor cores give in the same run."""
    with show.errors_as_sentences():
        if not this_machine().has_cuda:
            raise ConfigError("kernels are timed on a GPU, and no CUDA device can be used here")
        from spaninfer.bench.kernels.run import KERNELS, measure_kernels

        for record in measure_kernels(chosen(only, tuple(KERNELS)), show.note):
            typer.echo(json.dumps(record))


@app.command("cpu")
@spread
def bench_cpu(
    *,
    only: Only = None,
    runs: Runs = 5,
    peers: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated programs to compare with: llama.cpp, torch; default: those "
            "installed."
        ),
    ] = None,
    gguf: GgufFiles,
    threads: options.Threads = None,
    beside: Annotated[
        int, typer.Option(min=0, help="Busy processes to run alongside, each on one of the CPUs.")
    ] = 0,
) -> None:
    """Time the CPU kernels beside the machine's limits, and the engine beside its peers."""
    with show.errors_as_sentences():
        from spaninfer.bench.cpu import same_file
        from spaninfer.bench.cpu.kernels import KERNELS
        from spaninfer.bench.cpu.place import busy
        from spaninfer.bench.cpu.run import MODEL, NAMES, Subject, measure_cpu
        from spaninfer.bench.cpu.sides import PEERS, installed

        names = chosen(only, NAMES)
        asked = None if peers is None else chosen(peers, tuple(PEERS))
        found = installed(asked, show.note) if names - set(KERNELS) else ()
        if threads is not None:
            keep_to(threads)
        types = gguf.types(same_file.TYPES)
        with folder_of(same_file.MODEL if types else MODEL) as folder, busy(beside):
            subject = Subject(folder, found, types, gguf.operators)
            measured = measure_cpu(subject, names, runs, show.note, beside=beside)
            for record in measured:
                typer.echo(json.dumps(record))


@app.command("compare")
def bench_compare(
    first: Annotated[Path, typer.Argument(help="A file of records.")],
    second: Annotated[
        Path | None,
        typer.Argument(help="A second file, to compare with; without it, the first is shown."),
    ] = None,
    *,
    bars: Bars = None,
) -> None:
    """Print by how much the second file is faster, matched by what was measured.

    A ratio is bold where the ranges of the runs lie apart.
    """
    with show.errors_as_sentences():
        wanted = read_bars(bars) if bars else ()
        before = read(first)
        if second is None:
            print_records(before, wanted)
        else:
            print_comparison(compare(before, read(second)), wanted)


@app.command("plot")
def bench_plot(
    records: Annotated[Path, typer.Argument(help="A file of records.")],
    *,
    out: Annotated[Path, typer.Option(help="The folder for the pictures.")] = Path(),
    bars: Bars = None,
) -> None:
    """Draw a picture (PNG) per model or kernel and unit."""
    with show.errors_as_sentences():
        for path in draw(read(records), read_bars(bars) if bars else (), out):
            show.note(f"wrote {path}")


def _device_of(compute: Compute) -> str:
    """Return the device on which a server with these options computes."""
    if compute.device is not None:
        return compute.device
    may_use_gpu = compute.backend is None or BACKENDS[compute.backend].on_gpu
    return "cuda" if may_use_gpu and this_machine().has_cuda else "cpu"
