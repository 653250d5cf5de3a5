"""The commands below `spaninfer bench` that show pictures and clips to a model."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Annotated

import typer

from spaninfer import options, show
from spaninfer.bench.accuracy import measure_accuracy
from spaninfer.bench.arguments import Model, Only, Runs, Side, asked_of, chosen, engine_on
from spaninfer.bench.pictures.exam import SKILLS
from spaninfer.bench.turns import measure_turns
from spaninfer.bench.vision.run import WORKLOADS, Size, measure_vision
from spaninfer.grouped import spread
from spaninfer.option_groups import Deployment

app = typer.Typer(pretty_exceptions_enable=False)


@app.command("accuracy")
@spread
def bench_accuracy(
    model: options.Model = "demo",
    *,
    only: Only = None,
    questions: Annotated[
        int, typer.Option(min=1, help="How many questions test each skill.")
    ] = 200,
    deployment: Deployment,
) -> None:
    """Count right answers about pictures and clips that are drawn for it, by skill."""
    with show.errors_as_sentences():
        skills = chosen(only, tuple(SKILLS))
        with engine_on(deployment, model=model) as engine:
            for record in measure_accuracy(engine, skills, questions, show.note):
                typer.echo(json.dumps(record))


@app.command("turns")
@spread
def bench_turns(
    model: Model = "demo",
    *,
    side: Side = 1024,
    runs: Runs = 5,
    weights: options.WhichWeights = "checkpoint",
    deployment: Deployment,
) -> None:
    """Time first tokens of ten turns about one image, beside ten of text alone, over HTTP."""
    with show.errors_as_sentences(), ExitStack() as stack:
        named = {"weights": weights} | asked_of(model, stack, text=True)
        with engine_on(deployment, **named) as engine:
            for record in measure_turns(engine, side, runs, show.note):
                typer.echo(json.dumps(record))


@app.command("vision")
@spread
def bench_vision(
    model: Model = "qwen2-vl-7b",
    *,
    only: Only = None,
    size: Size,
    weights: options.WhichWeights = "checkpoint",
    deployment: Deployment,
    no_prefix_cache: options.NoPrefixCache = False,
) -> None:
    """Time conversations about pictures, one and 32 at a time, and decodes beside pictures."""
    with show.errors_as_sentences(), ExitStack() as stack:
        names = chosen(only, WORKLOADS)
        named = {"weights": weights} | asked_of(model, stack, text=True)
        named["prefix_cache"] = not no_prefix_cache
        with engine_on(deployment, **named) as engine:
            for record in measure_vision(engine, names, size, show.note):
                typer.echo(json.dumps(record))
