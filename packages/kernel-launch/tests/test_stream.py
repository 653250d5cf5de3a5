"""Streams of several frameworks, and the refusal to choose one."""

import numpy as np
import pytest
from spaninfer_kernel_launch import StreamMissing, stream_handle


class Protocol:
    def __cuda_stream__(self):
        return 0, 0x1234


class OfTorch:
    cuda_stream = 0x2345


class OfCupy:
    ptr = 0x3456


@pytest.mark.parametrize(
    ("stream", "handle"), [(Protocol(), 0x1234), (OfTorch(), 0x2345), (OfCupy(), 0x3456), (77, 77)]
)
def test_every_kind_of_stream_has_a_handle(stream, handle):
    assert stream_handle(stream) == handle


@pytest.mark.parametrize("stream", [0, -1])
def test_the_default_stream_is_not_a_handle(stream):
    with pytest.raises(StreamMissing, match="is not a stream of its own; pass stream="):
        stream_handle(stream)


def test_what_is_no_stream_is_refused_by_name():
    with pytest.raises(StreamMissing, match="str is not a stream"):
        stream_handle("stream")


def test_without_a_stream_an_array_of_no_framework_is_refused():
    with pytest.raises(StreamMissing, match="no stream is given, and ndarray has no current one"):
        stream_handle(None, np.zeros(3))


def test_an_array_of_a_class_made_from_a_frameworks_is_that_frameworks(monkeypatch):
    torch = pytest.importorskip("torch", reason="torch is not installed")

    class Weight(torch.nn.Parameter):  # as engines have for weights that know how to be loaded
        """A parameter that says more than torch's."""

    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 100 + index, False)
    monkeypatch.setattr("spaninfer_kernel_launch.stream._CURRENT", {})

    assert Weight.__module__.partition(".")[0] != "torch"
    assert stream_handle(None, Weight(torch.zeros(3))) == 99  # the number of "cpu" is -1


@pytest.mark.gpu
def test_without_a_stream_torch_says_which():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tensor, stream = torch.zeros(3, device="cuda"), torch.cuda.Stream()

    assert stream_handle(None, tensor) == torch.cuda.current_stream().cuda_stream
    with torch.cuda.stream(stream):
        assert stream_handle(None, tensor) == stream.cuda_stream


@pytest.mark.gpu
def test_without_a_stream_cupy_says_which():
    cupy = pytest.importorskip("cupy", reason="cupy is not installed")
    array = cupy.zeros(3)

    with cupy.cuda.Stream() as stream:
        assert stream_handle(None, array) == stream.ptr == stream_handle(stream)
