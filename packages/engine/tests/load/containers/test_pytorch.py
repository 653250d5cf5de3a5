"""PyTorch's files, parsed without executing them."""

import io
import json
import os
import pickle
import pickletools
import struct
import zipfile
from collections import OrderedDict

import ml_dtypes
import numpy as np
import pytest
from random_llama import write_model
from safetensors.numpy import load_file
from spaninfer_engine.errors import CheckpointError
from spaninfer_engine.load import open_checkpoint
from spaninfer_engine.load.containers.pickle_tensors import read_pickle
from spaninfer_engine.load.containers.pytorch import read_pytorch

torch = pytest.importorskip("torch")

DTYPES = ("float32", "float16", "bfloat16", "float64", "int8", "uint8", "int32", "int64", "bool")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_of_every_number_format_are_read(tmp_path, dtype, protocol):
    tensor = (torch.randn(5, 7, generator=torch.Generator().manual_seed(0)) * 9).to(
        getattr(torch, dtype)
    )
    torch.save({"x": tensor}, tmp_path / "m.bin", pickle_protocol=protocol)

    read = read_pytorch(tmp_path / "m.bin")["x"].read()

    assert read.dtype == np.dtype(getattr(ml_dtypes, dtype, dtype))
    np.testing.assert_array_equal(read.astype(np.float64), tensor.double().numpy())


def test_views_parameters_and_empty_tensors_are_read(tmp_path):
    whole = torch.arange(24.0).reshape(2, 3, 4)
    made = {
        "rows": whole[1:],
        "columns": whole[..., 1:3],
        "turned": whole.permute(2, 0, 1),
        "repeated": whole[0, 0].expand(3, 4),
        "number": whole[1, 2, 3],
        "empty": whole[:0],
        "parameter": torch.nn.Parameter(whole),
    }
    torch.save(made, tmp_path / "m.bin")

    read = {name: entry.read() for name, entry in read_pytorch(tmp_path / "m.bin").items()}

    assert read.keys() == made.keys()
    for name, tensor in made.items():
        np.testing.assert_array_equal(read[name], tensor.detach().numpy())


def test_a_state_dict_of_a_module_is_read(tmp_path):
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LayerNorm(3))
    for number, saved in enumerate((module.state_dict(), {"state_dict": module.state_dict()})):
        torch.save(saved, tmp_path / f"{number}.bin")

        read = read_pytorch(tmp_path / f"{number}.bin")

        assert read.keys() == module.state_dict().keys()
        np.testing.assert_array_equal(read["0.weight"].read(), module[0].weight.detach().numpy())


@pytest.mark.parametrize("shards", [1, 2])
def test_a_folder_of_pytorch_files_is_a_model(tmp_path, shards):
    write_model(tmp_path / "model", 1, np.float32)
    stored = load_file(tmp_path / "model" / "model.safetensors")
    (tmp_path / "model" / "model.safetensors").unlink()
    files = [f"pytorch_model-0000{i + 1}-of-0000{shards}.bin" for i in range(shards)]
    files = files if shards > 1 else ["pytorch_model.bin"]
    home = {name: files[number % shards] for number, name in enumerate(stored)}
    for file in files:
        here = {name: torch.from_numpy(stored[name]) for name in stored if home[name] == file}
        torch.save(OrderedDict(here), tmp_path / "model" / file)
    if shards > 1:
        index = tmp_path / "model" / "pytorch_model.bin.index.json"
        index.write_text(json.dumps({"weight_map": home}))

    with open_checkpoint(tmp_path / "model") as checkpoint:
        assert checkpoint.reader.names == stored.keys()
        for name, array in stored.items():
            np.testing.assert_array_equal(checkpoint.reader.read(name), array)


# ---- hostile files -------------------------------------------------------------------------------


class _Calls:
    """Pickles as a call of a function."""

    def __init__(self, function, *arguments):
        self._call = function, arguments

    def __reduce__(self):
        return self._call


def _archive(path, program: bytes, members: dict[str, bytes] | None = None, **options):
    with zipfile.ZipFile(path, "w", **options) as archive:
        archive.writestr("archive/data.pkl", program)
        for name, data in (members or {}).items():
            archive.writestr(f"archive/{name}", data)
    return path


@pytest.mark.parametrize(
    ("function", "argument", "named"),
    [
        (os.system, "touch {}", "system"),
        (eval, "open({!r}, 'w')", "eval"),
        (open, "{}", "open"),
        (getattr, "x", "getattr"),
    ],
)
@pytest.mark.parametrize("protocol", range(2, 6))
def test_a_function_is_named_and_not_called(tmp_path, function, argument, named, protocol):
    trace = tmp_path / "it-ran"
    program = pickle.dumps({"x": _Calls(function, argument.format(trace))}, protocol)

    with pytest.raises(CheckpointError, match=f"it names .*{named}.*it is not executed"):
        read_pytorch(_archive(tmp_path / "m.bin", program))

    assert not trace.exists()


def _opcodes(*lines: bytes) -> bytes:
    return b"\x80\x02" + b"".join(lines) + b"."


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (_opcodes(b"cos\nsystem\n", b"(X\x02\x00\x00\x00lstR"), "it names 'os.system'"),
        (_opcodes(b"(X\x02\x00\x00\x00lsios\nsystem\n"), "operation INST"),
        (_opcodes(b"ccollections\nOrderedDict\n", b")\x81"), "operation NEWOBJ"),
        (_opcodes(b"\x82\x01"), "operation EXT1"),
        (_opcodes(b"ccollections\nOrderedDict\n", b"K\x01\x85R"), "calls collections.OrderedDict"),
        (_opcodes(b"ctorch._utils\n_rebuild_tensor_v2\n", b")R"), "calls torch._utils._rebuild"),
        (_opcodes(b"X\x01\x00\x00\x00kQ"), "it refers to 'k'"),
        (_opcodes(b"ctorch._utils\n_rebuild_tensor_v2\n", b"}b"), "is damaged"),
        (_opcodes(b"K\x01"), "holds int, expected names and tensors"),
        (_opcodes(b"}X\x01\x00\x00\x00aK\x01s"), "'a' is int, not a tensor"),
        (_opcodes(b"}K\x01K\x01s"), "is damaged"),
        (_opcodes(b"h\x07"), "is damaged"),
        (_opcodes(b"t"), "is damaged"),
        (_opcodes(b"("), "is damaged"),
        (_opcodes(b"(("), "is damaged"),
        (b"\x80\x02}", "is damaged"),
        (b"", "is damaged"),
        (b"\xff\xff", "is damaged"),
    ],
)
def test_a_program_that_does_anything_else_is_refused_with_what_it_does(program, told):
    with pytest.raises(CheckpointError, match=told):
        read_pickle("here", program)


def _tensor(storage: str, numel: int, start: object, shape: tuple, strides: tuple) -> bytes:
    """Return the program of one tensor, as PyTorch writes it."""
    name, rebuild = b"ctorch\nFloatStorage\n", b"ctorch._utils\n_rebuild_tensor_v2\n"
    inner = _body(("storage", _Raw(name), storage, "cpu", numel)) + b"Q"
    arguments = inner + b"".join(map(_body, (start, shape, strides, False, None)))
    return _opcodes(b"}", _body("x"), rebuild, b"(", arguments, b"tRs")


class _Raw(bytes):
    """Operations that push one value."""


def _body(value: object) -> bytes:
    """Return the operations that push a value."""
    if isinstance(value, _Raw):
        return bytes(value)
    if isinstance(value, tuple):
        return b"(" + b"".join(map(_body, value)) + b"t"
    return pickle.dumps(value, 2)[2:-1]


@pytest.mark.parametrize(
    ("start", "shape", "strides", "told"),
    [
        (0, (2, 3), (3, 1), None),
        (1, (2, 3), (3, 1), "reaches beyond the 24 bytes"),
        (0, (2, 3), (4, 1), "reaches beyond"),
        (0, (2**40, 3), (0, 1), "reaches beyond"),  # as memory for a copy
        (2**70, (1,), (1,), "reaches beyond"),
        (0, (2**62, 2**62), (0, 0), "reaches beyond"),
        (-1, (2, 3), (3, 1), "is damaged"),
        (0, (-2, 3), (3, 1), "is damaged"),
        (0, (2, 3), (-3, 1), "is damaged"),
        (0, (2, 3), (1,), "is damaged"),
        (0, (True, 3), (3, 1), "is damaged"),
        (0.5, (2, 3), (3, 1), "is damaged"),
        (0, "ab", (3, 1), "is damaged"),
    ],
)
def test_a_tensor_stays_within_its_storage(tmp_path, start, shape, strides, told):
    data = np.arange(6, dtype=np.float32)
    path = _archive(
        tmp_path / "m.bin", _tensor("0", 6, start, shape, strides), {"data/0": data.tobytes()}
    )

    if told is None:
        np.testing.assert_array_equal(read_pytorch(path)["x"].read(), data.reshape(2, 3))
        return
    with pytest.raises(CheckpointError, match=told):
        read_pytorch(path)


@pytest.mark.parametrize("storage", ["1", "../0", "/etc/passwd", ""])
def test_a_storage_that_is_not_in_the_archive_is_named(tmp_path, storage):
    path = _archive(tmp_path / "m.bin", _tensor(storage, 6, 0, (6,), (1,)), {"data/0": bytes(24)})

    with pytest.raises(CheckpointError, match=r"has no archive/data/.*which a tensor lies in"):
        read_pytorch(path)


def test_archives_that_are_compressed_old_or_foreign_are_refused(tmp_path):
    program = _tensor("0", 6, 0, (6,), (1,))
    data = {"data/0": bytes(24)}
    packed = _archive(tmp_path / "a.bin", program, data, compression=zipfile.ZIP_DEFLATED)
    big = _archive(tmp_path / "b.bin", program, {**data, "byteorder": b"big"})
    none = tmp_path / "c.bin"
    with zipfile.ZipFile(none, "w") as archive:
        archive.writestr("x", "y")
    old = tmp_path / "d.bin"
    torch.save({"x": torch.ones(3)}, old, _use_new_zipfile_serialization=False)

    for path, told in (
        (packed, "is compressed"),
        (big, "not little-endian"),
        (none, "holds 0 files data.pkl"),
        (old, "not a zip archive, the format of PyTorch since 1.6"),
    ):
        with pytest.raises(CheckpointError, match=told):
            read_pytorch(path)


def test_an_archive_that_points_elsewhere_is_refused(tmp_path):
    """The place of a member is in the directory at the end, where anything may be written."""
    path = _archive(tmp_path / "m.bin", _tensor("0", 6, 0, (6,), (1,)), {"data/0": bytes(24)})
    whole = bytearray(path.read_bytes())
    entry = whole.rindex(b"PK\x01\x02")
    for offset in (1, 50, len(whole) - 10, 2**31):
        struct.pack_into("<I", whole, entry + 42, offset)
        path.write_bytes(whole)

        with pytest.raises(CheckpointError, match=r"m\.bin"):
            read_pytorch(path)


def test_no_byte_of_a_file_makes_reading_fail_otherwise(tmp_path):
    """Whatever a damaged file says, it is read or refused with its name."""
    file = io.BytesIO()
    torch.save({"x": torch.arange(6.0), "y": torch.ones(2, 2).t()}, file)
    whole, rng = file.getvalue(), np.random.default_rng(0)
    path = tmp_path / "m.bin"
    for _ in range(300):
        changed = bytearray(whole)
        for place in rng.integers(0, len(whole), rng.integers(1, 4)):
            changed[place] = rng.integers(0, 256)
        path.write_bytes(changed[: rng.choice([len(changed), rng.integers(0, len(changed))])])
        try:
            for entry in read_pytorch(path).values():
                entry.read()
        except CheckpointError as refused:
            assert "m.bin" in str(refused)  # noqa: PT017


def test_a_long_program_is_followed_without_recursion():
    nested = b"\x80\x02" + b")" + b"\x85" * 100_000 + b"."

    with pytest.raises(CheckpointError, match="holds tuple"):
        read_pickle("here", nested)
    assert len(list(pickletools.genops(nested))) > 100_000
