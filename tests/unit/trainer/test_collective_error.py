import pytest
import torch.distributed as dist

from holdfast.trainer.group import is_collective_failure

GLOO_CLOSED = (
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4228"
)


def raised_from(cause: Exception) -> Exception:
    try:
        try:
            raise cause
        except Exception as error:
            raise ValueError("bad batch") from error
    except ValueError as error:
        return error


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(GLOO_CLOSED),
        RuntimeError("Connection reset by peer"),
        RuntimeError("Timed out waiting 30000ms for recv operation to complete"),
        RuntimeError("Gloo connectFullMesh failed with Broken pipe"),
        dist.DistBackendError("NCCL error: remote process exited or there was a network error"),
        dist.DistStoreError("wait timeout"),
        dist.DistNetworkError("the store does not answer"),
        raised_from(RuntimeError(GLOO_CLOSED)),
    ],
    ids=lambda error: f"{type(error).__name__}: {error}"[:60],
)
def test_what_a_peer_caused_is_a_collective_failure(error: Exception) -> None:
    assert is_collective_failure(error)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("Connection closed by peer"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)"),
        RuntimeError("CUDA out of memory"),
        ConnectionResetError("Connection reset by peer"),
        KeyError("loss"),
    ],
    ids=lambda error: f"{type(error).__name__}: {error}"[:60],
)
def test_what_the_script_caused_is_not(error: Exception) -> None:
    assert not is_collective_failure(error)
