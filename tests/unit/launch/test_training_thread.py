"""What faulthandler wrote of a process's threads, read as where its training thread stands."""

from holdfast.agent.launch.stacks import training_thread

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
