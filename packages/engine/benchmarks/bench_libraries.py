"""Share of the registers' rate that GEMMs of encoders and towers reach; a JSON record a line.

    python bench_libraries.py --threads 1 --rounds 15

Needs torch, onnx and onnxruntime. Every round, each program multiplies the same rows in turns:
torch's library (MKL) and ONNX Runtime's (MLAS) in float32, ONNX Runtime's in int8, and ours. One
thread is timed by its CPU time, which neighbours on the machine lengthen less, several by the
clock. Rates are of the least time, in 10^9 operations a second; `over` are medians over rounds of
each library's time by the program's. `of_peak` is the share of what a tile makes of weights in
registers (`roofline.peak_gops`), the most that a program's format reached between rounds; int8 of
ONNX Runtime multiplies as w7a7 does.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spaninfer_host_limits import cpu_name
from spaninfer_kernels_cpu import Format, Script, ThreadPool, pack
from spaninfer_kernels_cpu.codegen.memory import aligned
from spaninfer_kernels_cpu.gemm.gemm_call import Gemm
from spaninfer_kernels_cpu.gemm.roofline import peak_gops, read_gbps
from spaninfer_kernels_cpu.runtime.call import Matrix

Floats = NDArray[np.float32]
Program = Callable[[], object]

SHAPES = (  # rows, outputs, channels: of MiniLM-L6 and bge-small, then of Qwen2-VL's tower
    "512x1536x384", "512x384x1536", "512x1152x384", "512x384x384",
    "36x1536x384", "36x384x1536",
    "1024x1280x1176", "1024x3840x1280", "1024x1280x1280", "1024x5120x1280", "1024x1280x5120",
)  # fmt: skip
FORMATS = {
    "float32": Format("float32"),
    "w13a13": Format("w13a13", 64),
    "int8": Format("int8"),
    "w7a7": Format("w7a7"),
}
PEAKS_EVERY = 8  # rounds


def main() -> None:
    """Print a record of the limits, then one per shape and program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, help="rows x outputs x channels")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=[*FORMATS])
    asked = parser.parse_args()
    threads, peaks = asked.threads, dict.fromkeys(FORMATS, 0.0)
    records: list[dict[str, Any]] = []
    with ThreadPool(threads) as pool:
        for shape in asked.shapes:
            rows, outputs, channels = map(int, shape.split("x"))
            rng = np.random.default_rng(0)
            x = rng.standard_normal((rows, channels), np.float32)
            weight = rng.standard_normal((outputs, channels), np.float32) * np.float32(0.02)
            programs = _peers(x, weight, threads)
            peers = list(programs)
            programs |= {
                f"spaninfer {name}": _ours(x, weight, name, pool) for name in asked.formats
            }
            taken = _in_turns(programs, asked, peaks)
            for name, seconds in taken.items():
                gops = 2e-9 * rows * outputs * channels / min(seconds)
                records.append(
                    {
                        "benchmark": "libraries", "rows": rows, "outputs": outputs,
                        "channels": channels, "program": name, "gops": round(gops, 1),
                        "over": {peer: _over(taken[peer], seconds) for peer in peers},
                        "threads": threads, "cpu": cpu_name(),
                        "load": round(os.getloadavg()[0], 2),
                    }
                )  # fmt: skip
    limits = {name: round(peak, 1) for name, peak in peaks.items()}
    read = round(read_gbps(threads), 1)
    print(json.dumps({"benchmark": "limits", "peak_gops": limits, "read_gbps": read}))
    for record in records:
        share = round(record["gops"] / peaks[_format_of(record["program"])], 3)
        print(json.dumps({**record, "of_peak": share}))


def _over(theirs: list[float], ours: list[float]) -> float:
    return round(median(a / b for a, b in zip(theirs, ours, strict=True)), 3)


def _format_of(program: str) -> str:
    """Return the format whose registers' rate bounds a program."""
    if program.startswith("spaninfer"):
        return program.rpartition(" ")[2]
    return "w7a7" if program.endswith("int8") else "float32"


def _in_turns(
    programs: dict[str, Program], asked: argparse.Namespace, peaks: dict[str, float]
) -> dict[str, list[float]]:
    """Return the seconds of a call, in every round; raise `peaks` to what registers reach."""
    clock = process_time if asked.threads == 1 else perf_counter
    taken: dict[str, list[float]] = {name: [] for name in programs}
    for run in programs.values():
        run()
    for number in range(asked.rounds):
        if number % PEAKS_EVERY == 0:
            for name, format in FORMATS.items():
                reached = peak_gops(format.kind, group=format.group, cpus=asked.threads)
                peaks[name] = max(peaks[name], reached)
        for name in sorted(programs, reverse=number % 2 == 0):
            begin = clock()
            programs[name]()
            taken[name].append(clock() - begin)
    return taken


def _ours(x: Floats, weight: Floats, name: str, pool: ThreadPool) -> Program:
    gemm = Gemm(pack(weight, FORMATS[name]))
    out = np.empty((len(x), len(weight)), np.float32)
    scratch = aligned((len(x) * gemm.scratch_bytes,), np.uint8)
    calls = gemm.calls(Matrix.of(x), out=Matrix.of(out), scratch=scratch.ctypes.data)
    script = Script(calls)

    def run() -> object:
        pool.run(script, [len(x)])
        return gemm, x, out, scratch

    return run


def _peers(x: Floats, weight: Floats, threads: int) -> dict[str, Program]:
    import torch

    torch.set_num_threads(threads)
    ours, theirs = torch.from_numpy(x), torch.from_numpy(weight)
    out = torch.empty(len(x), len(weight))

    def by_torch() -> object:
        with torch.no_grad():
            return torch.mm(ours, theirs.T, out=out)

    sessions = _sessions(weight, threads)
    return {"torch": by_torch} | {
        name: partial(session.run, None, {"x": x}) for name, session in sessions.items()
    }


def _sessions(weight: Floats, threads: int) -> dict[str, Any]:
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    outputs, channels = weight.shape
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    scale = np.float32(np.abs(weight).max() / 127)
    codes = np.clip(np.rint(weight.T / scale), -127, 127).astype(np.int8)
    graphs = {
        "onnxruntime": (
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            {"w": np.ascontiguousarray(weight.T)},
        ),
        "onnxruntime int8": (
            [
                helper.make_node(
                    "DynamicQuantizeMatMul", ["x", "w", "s", "z"], ["y"], domain="com.microsoft"
                )
            ],
            {"w": codes, "s": np.array(scale), "z": np.array(0, np.int8)},
        ),
    }
    sessions = {}
    for name, (nodes, constants) in graphs.items():
        graph = helper.make_graph(
            nodes, "gemm",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", channels])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", outputs])],
            [numpy_helper.from_array(array, key) for key, array in constants.items()],
        )  # fmt: skip
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=8)
        onnx.checker.check_model(model)
        sessions[name] = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    return sessions


if __name__ == "__main__":
    main()
