"""What faulthandler wrote of a process's threads, read as where its training thread stands."""

from collections.abc import Sequence

import pytest

from holdfast.agent.launch.stacks import Frame, told_of, training_thread
from holdfast.api.stacks import FRAMES_MAX

DUMP = """Thread 0x00007f1 (most recent call first):
  File "/opt/venv/lib/python3.11/site-packages/holdfast/trainer/host.py", line 330 in _serve
  File "/usr/lib/python3.11/threading.py", line 975 in run

Current thread 0x00007f2 (most recent call first):
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/home/me/my job/train.py", line 42 in step
  File "/home/me/my job/train.py", line 90 in <module>
  File "<frozen runpy>", line 88 in _run_code
  File "/opt/venv/lib/python3.11/site-packages/holdfast/agent/launch/warm_parent.py", line 212 in <module>
"""


def test_it_is_the_thread_that_runs_the_script_without_what_leads_to_it() -> None:
    frames = training_thread(DUMP)
    assert [(each.line, each.function) for each in frames] == [
        (3252, "all_reduce"),
        (42, "step"),
        (90, "<module>"),
    ]
    assert frames[1].file == "/home/me/my job/train.py"


def test_the_interrupted_thread_is_taken_where_none_runs_a_script() -> None:
    dump = 'Current thread 0x1 (most recent call first):\n  File "/a/b.py", line 3 in f\n'
    assert [each.line for each in training_thread(dump)] == [3]


def test_what_is_no_dump_is_no_stack() -> None:
    assert training_thread("") == training_thread("Fatal Python error\n  File broken") == ()


def test_a_script_that_trains_on_another_thread_is_seen_there() -> None:
    main, training = (
        DUMP.split("\n\n")[1],
        """Thread 0x00007f9 (most recent call first):
  File "/home/me/train.py", line 12 in train
  File "/opt/venv/lib/python3.11/site-packages/holdfast/trainer/run.py", line 210 in enter
  File "/home/me/train.py", line 70 in beside
  File "/usr/lib/python3.11/threading.py", line 975 in run
""",
    )
    assert [each.line for each in training_thread(f"{main}\n{training}")][:3] == [12, 210, 70]


def test_beyond_what_faulthandler_writes_it_is_the_thread_in_the_users_own_code() -> None:
    library = '  File "/opt/venv/lib/python3.11/site-packages/net.py", line 5 in forward\n' * 98
    deep = f'Thread 0x1 (most recent call first):\n  File "/home/me/net.py", line 8 in block\n{library}  ...\n'
    waits = (
        'Current thread 0x2 (most recent call first):\n  File "/usr/lib/python3.11/threading.py", line 9 in wait\n'
    )
    assert training_thread(deep + waits)[0].file == "/home/me/net.py"
    assert training_thread(deep.replace("Thread", "Current thread") + waits)[0].file == "/home/me/net.py"


LIBRARY, OWN = "/opt/venv/lib/python3.11/site-packages/lightning/loop.py", "/home/me/train.py"


@pytest.mark.parametrize(
    ("files", "told"),
    [
        pytest.param([LIBRARY] * 40 + [OWN], [*range(23), 40], id="a framework calls itself"),
        pytest.param(
            [LIBRARY] * 30 + [OWN] * 2 + [LIBRARY] * 30 + [OWN], [*range(21), 30, 31, 62], id="called back"
        ),
        pytest.param([LIBRARY] + [OWN] * 60, list(range(24)), id="a script that calls itself"),
        pytest.param([LIBRARY] * 40, list(range(24)), id="none of its own"),
        pytest.param([OWN, LIBRARY, OWN], [0, 1, 2], id="few"),
        pytest.param([], [], id="none"),
    ],
)
def test_of_too_many_frames_the_innermost_and_the_users_own_are_told(
    files: Sequence[str], told: list[int]
) -> None:
    assert len(told) <= FRAMES_MAX
    assert [each.line for each in told_of([Frame(file, at, "f") for at, file in enumerate(files)])] == told
