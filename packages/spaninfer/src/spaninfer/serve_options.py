"""The options of `serve`: of the server, and of the engine behind it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from spaninfer_engine import EngineConfig
from spaninfer_engine.tools import parse_bytes
from spaninfer_serving import Settings
from spaninfer_serving.tools import read_admin_file, read_key_file

from spaninfer import options
from spaninfer.option_groups import Deployment, Steps, Tiers
from spaninfer.threads import num_api_servers


@dataclass(frozen=True, slots=True)
class Listening:
    """The address to listen on."""

    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(help="0 takes any free one.")] = 8000
    ssl_certfile: Annotated[
        Path | None,
        typer.Option(help="Serve https: with this certificate chain, in PEM."),
    ] = None
    ssl_keyfile: Annotated[
        Path | None,
        typer.Option(help="Its private key, in PEM; default: in the same file."),
    ] = None

    @property
    def asked(self) -> dict[str, Any]:
        """Fields of Settings."""
        return {
            "host": self.host,
            "port": self.port,
            "ssl_certfile": self.ssl_certfile,
            "ssl_keyfile": self.ssl_keyfile,
        }


@dataclass(frozen=True, slots=True)
class Access:
    """Access to the server: who may use it, and what users share."""

    api_key: Annotated[
        list[str] | None,
        typer.Option(envvar="SPANINFER_API_KEY", help="A key clients must send; may be repeated."),
    ] = None
    priority_key: Annotated[
        list[str] | None,
        typer.Option(
            envvar="SPANINFER_PRIORITY_KEY",
            help="A key whose requests may set a priority, too; may be repeated.",
        ),
    ] = None
    key_file: Annotated[
        Path | None,
        typer.Option(help="A TOML file of hashed keys and their limits: docs/guides/operate.md."),
    ] = None
    admin_key_file: Annotated[
        Path | None,
        typer.Option(help="A file of hashed admin keys, one per line: docs/guides/operate.md."),
    ] = None
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Listen on an open address without a key.")
    ] = False
    share_prefixes: Annotated[
        bool,
        typer.Option(
            "--share-prefixes",
            help="Let requests with different keys share cached prefixes, media and schemas.",
        ),
    ] = False
    weights_folder: Annotated[
        Path | None,
        typer.Option(
            help="Let operators load other weights from this folder: docs/guides/operate.md."
        ),
    ] = None

    @property
    def asked(self) -> dict[str, Any]:
        """Fields of Settings; raises ConfigError for a file of keys that cannot be read."""
        return {
            "api_keys": tuple(self.api_key or ()),
            "priority_keys": tuple(self.priority_key or ()),
            "user_keys": () if self.key_file is None else read_key_file(self.key_file),
            "admin_hashes": (
                () if self.admin_key_file is None else read_admin_file(self.admin_key_file)
            ),
            "weights_folder": self.weights_folder,
            "no_auth": self.no_auth,
            "share_prefixes": self.share_prefixes,
        }


@dataclass(frozen=True, slots=True)
class Answering:
    """Limits of requests, and the form of answers."""

    max_body: Annotated[
        str | None,
        typer.Option(
            help="Largest request body, such as 8MiB; "
            "default: 2 MiB, and 32 bytes per token of the model's context."
        ),
    ] = None
    drain: Annotated[
        float, typer.Option(help="Seconds that running requests get to finish after SIGTERM.")
    ] = 30.0
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(help="A web origin whose pages may call this server; may be repeated."),
    ] = None
    tool_parser: Annotated[
        str | None,
        typer.Option(
            help="The dialect of the model's tool calls, from docs/guides/tools.md; default: "
            "detected from the chat template."
        ),
    ] = None

    @property
    def asked(self) -> dict[str, Any]:
        """Fields of Settings; raises ConfigError for a size that is none."""
        return {
            "max_body_bytes": None if self.max_body is None else parse_bytes(self.max_body),
            "drain_s": self.drain,
            "allow_origins": tuple(self.allow_origin or ()),
            "tool_parser": self.tool_parser,
        }


@dataclass(frozen=True, slots=True)
class MediaSources:
    """Sources of images, video and audio, and their number."""

    media_folder: Annotated[
        Path | None,
        typer.Option(help="Read file: URLs of images, video and audio below this folder."),
    ] = None
    media_fetch: Annotated[
        bool,
        typer.Option(
            "--media-fetch",
            help="Fetch https: URLs of images, video and audio from public addresses.",
        ),
    ] = False
    media_host: Annotated[
        list[str] | None,
        typer.Option(help="Fetch from this host only; may be repeated."),
    ] = None
    media_workers: Annotated[
        int, typer.Option(help="Processes that decode images, video and audio.")
    ] = 2
    max_media: Annotated[
        int, typer.Option(help="Most images, videos and clips in one request.")
    ] = 64

    @property
    def asked(self) -> dict[str, Any]:
        """Fields of Settings."""
        return {
            "media_folder": self.media_folder,
            "media_fetch": self.media_fetch,
            "media_hosts": tuple(self.media_host or ()),
            "media_workers": self.media_workers,
            "max_media": self.max_media,
        }


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Logs, metrics and traces of requests, and what is kept of them."""

    log_format: Annotated[
        Literal["text", "json"], typer.Option(help="json: a JSON object per line.")
    ] = "text"
    metrics_names: Annotated[
        Literal["spaninfer", "both"],
        typer.Option(help="both: /metrics also has vLLM's names, for existing dashboards."),
    ] = "spaninfer"
    traces: Annotated[
        bool,
        typer.Option(
            "--traces",
            help="Send OpenTelemetry traces as the OTEL_* variables say; needs the extra otel.",
        ),
    ] = False
    max_stored_responses: Annotated[
        int, typer.Option(help="Most responses of /v1/responses kept in memory; 0: none.")
    ] = 1024
    profile_dir: Annotated[
        Path | None,
        typer.Option(help="The folder for profiles that operators start with POST /start_profile."),
    ] = None
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Do not write the access log, a line per request.")
    ] = False

    @property
    def asked(self) -> dict[str, Any]:
        """Fields of Settings."""
        return {
            "log_requests": not self.quiet,
            "log_format": self.log_format,
            "metrics_names": self.metrics_names,
            "traces": self.traces,
            "profile_dir": self.profile_dir,
            "max_stored_responses": self.max_stored_responses,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The server in front of an engine."""

    listening: Listening
    api_server_count: options.ApiServerCount = None
    served_model_name: options.ServedNames = None
    access: Access
    answering: Answering
    media: MediaSources
    telemetry: Telemetry

    @property
    def names(self) -> list[str]:
        """Names of the model for clients, the engine's own first; empty: the folder's name."""
        return self.served_model_name or []

    def settings(self, threads: int | None) -> Settings:
        """Return the settings of a server that keeps to so many CPUs; ConfigError for bad ones."""
        return Settings(
            further_names=tuple(self.names[1:]),
            **self.listening.asked,
            **self.access.asked,
            **self.answering.asked,
            **self.media.asked,
            **self.telemetry.asked,
            api_servers=num_api_servers(self.api_server_count, threads),
        )


@dataclass(frozen=True, slots=True)
class Scheduling:
    """Limits of scheduling: requests that run and wait, the time of a step, what requests share."""

    max_running: options.MaxRunning = 256
    max_waiting: options.MaxWaiting = 4096
    step_timeout: options.StepTimeout = 300.0
    no_prefix_cache: options.NoPrefixCache = False

    @property
    def asked(self) -> dict[str, Any]:
        """Fields of EngineConfig."""
        return {
            "max_running": self.max_running,
            "max_waiting": self.max_waiting,
            "step_timeout_s": self.step_timeout,
            "prefix_cache": not self.no_prefix_cache,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedEngine:
    """The engine behind a server."""

    weights: options.WhichWeights = "checkpoint"
    deployment: Deployment
    tiers: Tiers
    scheduling: Scheduling
    steps: Steps
    tune: options.Tune = None
    spec: options.Spec = None
    chat_template: options.ChatTemplate = None

    def config(self, model: str, names: list[str]) -> EngineConfig:
        """Return the configuration for a model that clients know by these names."""
        return EngineConfig(
            model=model,
            weights=self.weights,
            served_name=next(iter(names), None),
            **self.deployment.asked,
            **self.tiers.asked,
            **self.scheduling.asked,
            **self.steps.asked,
            tune=self.tune,
            spec=self.spec,
            chat_template=self.chat_template,
        )
