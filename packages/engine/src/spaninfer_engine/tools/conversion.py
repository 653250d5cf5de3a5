"""A checkpoint becomes a folder that starts sooner: packed for backend cpu, or in 8-bit codes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from spaninfer_engine.backends.registry import CPU, CUDA
from spaninfer_engine.config import EngineConfig, Quantize, QuantizeGroup
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.load import Checkpoint, open_checkpoint
from spaninfer_engine.load.containers.llama2c_pieces import find_pieces
from spaninfer_engine.load.folders.hub_cache import whole_path
from spaninfer_engine.load.packed.file import PACKED_FILE, TEXT_FILE, PackedReader, describe_tensors
from spaninfer_engine.load.packed.packing import WAY_OUT, Packing, packing_of
from spaninfer_engine.load.packed.tensor_error import TensorError
from spaninfer_engine.load.quantised.rounded_rows import SCHEMES
from spaninfer_engine.ops.operation import Use
from spaninfer_engine.program.bind import bind_all, bind_packed
from spaninfer_engine.program.lower import lower
from spaninfer_engine.program.lower_tower import lower_tower
from spaninfer_engine.program.packer import Packer
from spaninfer_engine.startup.build import open_on_cpu
from spaninfer_engine.startup.compute import refuse_group
from spaninfer_engine.startup.model import locate, resolve_decoder
from spaninfer_engine.startup.progress import Progress, silent, stage_of
from spaninfer_engine.startup.shortage import refuse_narrow_address_space, shortage_named
from spaninfer_engine.startup.weight_formats import formats_of
from spaninfer_engine.tools.rounded_folder import RoundedWeights, rounded_names, write_rounded

Report: TypeAlias = Callable[[TensorError], None]

COPIED = (".json", ".txt", ".model", ".tiktoken", ".jinja")
"""Suffixes of files that go along: config, tokenizer, templates; not weights, and no code."""


@shortage_named()
def convert(
    model: str | Path,
    out: Path,
    *,
    quantize: Quantize | None = None,
    quantize_group: QuantizeGroup | None = None,
    spec: Path | None = None,
    progress: Progress = silent,
    report: Report | None = None,
) -> Path:
    """Pack the weights of a Hugging Face folder, a GGUF or a llama2.c file into the folder `out`.

    They are packed for backend cpu, and lie in memory until all are written; those in "fp8" and
    "w8a8" become a folder in the format compressed-tensors, which every backend reads. Without
    `quantize`, weights of matmuls keep the numbers or codes that they are stored in. `out` is new
    or empty, and is there only when it is whole; it is returned, resolved. `report` is called with
    what quantising changed of each tensor. Raises ConfigError for what was asked, and where `out`
    cannot be written; for what is on disk CheckpointError.
    """
    refuse_narrow_address_space()
    asked = EngineConfig(
        model=model, quantize=quantize, quantize_group=quantize_group, spec=spec, backend="cpu"
    )
    out = whole_path(out).resolve()
    _refuse_used(out)
    path, _ = locate(model)
    with open_checkpoint(path) as checkpoint:
        if isinstance(checkpoint.reader, PackedReader):
            raise ConfigError(f"{path} is already converted; {WAY_OUT}")
        write = _plan(asked, checkpoint, progress, report)
        try:
            with _complete(out) as folder:
                _write_beside(folder, checkpoint)
                write(folder)
        except OSError as error:
            raise ConfigError(f"{out} cannot be written: {error}") from error
    return out


def _plan(
    asked: EngineConfig, checkpoint: Checkpoint, progress: Progress, report: Report | None
) -> Callable[[Path], None]:
    """Return what writes weights into a folder; ConfigError where they cannot be as requested."""
    of_weights = stage_of(progress, "weights")
    if asked.quantize in SCHEMES:
        refuse_group(asked)
        names = rounded_names(resolve_decoder(asked, checkpoint))
        rounded = RoundedWeights(checkpoint.reader, names, asked.quantize)
        return lambda folder: write_rounded(folder, checkpoint, rounded, of_weights, report)
    if asked.quantize in CUDA.quantizes and asked.quantize not in CPU.quantizes:
        raise ConfigError(
            f"no folder holds weights in {asked.quantize}, which backend cuda rounds them to at "
            f"every start; give --quantize {asked.quantize} there, or convert to "
            f"{', '.join((*SCHEMES, *CPU.quantizes))}"
        )
    packing = packing_of(asked.quantize, asked.quantize_group)
    weights = _packed_weights(asked, checkpoint, progress, report)
    return lambda folder: _write_packed(folder, checkpoint, weights, packing)


def _packed_weights(
    asked: EngineConfig, checkpoint: Checkpoint, progress: Progress, report: Report | None
) -> dict[str, Any]:
    """Return every weight as the backend packs it for steps, by its name in files."""
    from spaninfer_engine.backends.cpu.gemm import as_stacks
    from spaninfer_engine.backends.cpu.packing_error import is_made, packing_error
    from spaninfer_engine.startup.packed_weights import name_of

    decoder, ops = open_on_cpu(asked, checkpoint)
    pack, weights = Packer(ops, checkpoint.reader), dict[str, Any]()

    def keep(uses: Sequence[Use], layout: str) -> Any:
        name = name_of(uses, layout)
        if name not in weights:
            weights[name] = pack(uses, layout)
            if report is not None and is_made(weights[name], layout):
                parts = as_stacks([pack.expanded(use) for use in uses], layout)
                report(packing_error(name.partition(": ")[2], weights[name], parts))
        return weights[name]

    bind_packed(lower(decoder), ops, keep, stage_of(progress, "weights"))
    for tower in decoder.towers:
        bind_all(lower_tower(tower), ops, keep)
    return weights


def _write_packed(
    folder: Path, checkpoint: Checkpoint, weights: dict[str, Any], packing: Packing
) -> None:
    """Write packed weights into a folder."""
    from spaninfer_engine.startup.packed_weights import write_weights

    tensors = describe_tensors(checkpoint.reader)
    formats = formats_of(checkpoint.reader)
    write_weights(folder / PACKED_FILE, weights, packing, tensors, formats)


def _write_beside(folder: Path, checkpoint: Checkpoint) -> None:
    """Write the files that go along into a folder: config, tokenizer, template."""
    if checkpoint.path.is_dir():
        return _copy_beside(checkpoint.path, folder)
    (folder / "config.json").write_text(json.dumps(dict(checkpoint.config), indent=2))
    if checkpoint.path.suffix.lower() == ".gguf":
        from spaninfer_engine.load.gguf.text import write_text

        return write_text(checkpoint.path, folder / TEXT_FILE)
    pieces = find_pieces(checkpoint.path.parent, checkpoint.config["vocab_size"])
    if pieces is not None:
        shutil.copyfile(pieces, folder / pieces.name)


def _copy_beside(source: Path, folder: Path) -> None:
    """Copy the files beside the weights that go along."""
    for file in sorted(source.iterdir()):
        is_index = file.name.endswith(".index.json")
        if file.suffix in COPIED and file.is_file() and not is_index:
            shutil.copyfile(file, folder / file.name)


def _refuse_used(out: Path) -> None:
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ConfigError(f"{out} already exists; give a new or empty folder")


@contextmanager
def _complete(out: Path) -> Iterator[Path]:
    """Yield a folder beside `out`, which becomes `out` at the end, or is removed if that fails."""
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    partial.mkdir(parents=True)
    try:
        yield partial
        if out.exists():
            out.rmdir()  # only an empty one can be; Windows replaces none
        partial.rename(out)
    except BaseException:  # interrupts too
        shutil.rmtree(partial, ignore_errors=True)
        raise
