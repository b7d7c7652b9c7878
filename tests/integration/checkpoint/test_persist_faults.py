"""Every call of a save fails or kills once; what was committed before is there afterwards, bit by bit."""

import errno
import multiprocessing
import os
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
from checkpoint_solo import Solo, committed
from patience import patient
from recorder import Call, Recorder

pytestmark = pytest.mark.long

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["holdfast.checkpoint.checkpointer", "torch.distributed.fsdp", "torch._dynamo"])


def prepare(root: Path) -> None:
    """Two checkpoints, of which the second was damaged, so that the save of step 2 replaces it and retires 1."""
    Solo(root, round=1, keep=2).train(until=2)
    (root / "step-00000002" / "__0_0.distcp").write_bytes(b"")


def saving(root: Path, *, round: int = 2) -> Solo:
    """Restores step 1, and saves step 2 when it is trained."""
    return Solo(root, round=round, keep=1)


def newest(root: Path) -> tuple[int | None, list[float]]:
    shutil.copytree(root, root.with_name("copy"), dirs_exist_ok=True)
    solo = Solo(root.with_name("copy"), round=9, every_steps=None).train(until=0)
    shutil.rmtree(root.with_name("copy"))
    return solo.run.restores[0][0], solo.weights


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> list[Call]:
    """What a process does from its start until step 2 is saved."""
    root = tmp_path_factory.mktemp("whole") / "root"
    prepare(root)
    with pytest.MonkeyPatch.context() as patch:
        recorder = Recorder(root).watch(patch)
        saving(root).train(until=2)
    assert {call.kind for call in recorder.calls} == {
        "make",
        "create",
        "write",
        "cut",
        "sync",
        "rename",
        "unlink",
        "rmdir",
    }
    return recorder.calls


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> dict[int | None, list[float]]:
    """After each step, undisturbed."""
    root = tmp_path_factory.mktemp("undisturbed")
    return {step: Solo(root / str(step)).train(until=step).weights for step in range(1, 5)}


@dataclass
class Once:
    """Lets the call with this number fail, and says so."""

    number: int
    has_failed: bool = False
    count: int = 0

    def __call__(self, call: Call) -> None:
        self.count += 1
        if self.count == self.number + 1:
            self.has_failed = True
            raise OSError(errno.EIO, "Input/output error", call.name)


def test_a_call_that_fails_costs_one_save_and_never_what_was_committed(
    calls: list[Call], weights: dict[int | None, list[float]], tmp_path: Path
) -> None:
    begun = next(number for number, call in enumerate(calls) if call.kind == "make" and ".tmp-" in call.name)
    for number in range(begun, len(calls)):
        root = tmp_path / str(number)
        prepare(root)
        with pytest.MonkeyPatch.context() as patch:
            fault = Once(number)
            solo = saving(root)
            Recorder(root, fault).watch(patch)
            solo.train(until=3)
        assert fault.has_failed
        assert solo.steps == [2, 3], calls[number]
        assert newest(root) == (3, weights[3]), calls[number]
        assert committed(root) == ["step-00000003"], f"nothing half done is left after {calls[number]}"


def die(root: Path, number: int) -> None:
    count = 0

    def kill(call: Call) -> None:
        nonlocal count
        count += 1
        if count > number:
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patch:
        Recorder(root, kill).watch(patch)
        saving(root).train(until=2)


def test_a_process_killed_between_two_calls_leaves_the_newest_good_one(
    calls: list[Call], weights: dict[int | None, list[float]], tmp_path: Path
) -> None:
    at_stake = next(number for number, call in enumerate(calls) if call.kind == "rename" and ".tmp-" in call.name)
    for number in range(0, len(calls), 4):  # The power loss tests look at the others, without a real death.
        root = tmp_path / str(number)
        prepare(root)
        process = _CONTEXT.Process(target=die, args=(root, number))
        process.start()
        process.join(patient(30))
        assert process.exitcode == -signal.SIGKILL
        step = 1 if number <= at_stake else 2
        assert newest(root) == (step, weights[step]), calls[number]
        again = saving(root, round=3).train(until=3)
        assert again.steps == list(range(step + 1, 4)), calls[number]
        assert committed(root) == ["step-00000003"], f"nothing half done is left after {calls[number]}"
