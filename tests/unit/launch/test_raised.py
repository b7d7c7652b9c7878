"""What a worker's Python code raised, from what it wrote last."""

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.agent.launch import child, logs
from holdfast.agent.launch.ending import raised_in

TORCH = "/usr/lib/python3.12/site-packages/torch/nn/modules/module.py"
CHAINED = f"""step 7
Traceback (most recent call last):
  File "/home/me/gpt/data.py", line 12, in batch
    return table[key]
           ~~~~~^^^^^
KeyError: 'tokens'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "{child.__file__}", line 131, in _run_main
    runpy.run_path(target, run_name="__main__")
  File "<frozen runpy>", line 286, in run_path
  File "/home/me/gpt/train.py", line 41, in <module>
    step(batch())
  File "{TORCH}", line 1511, in _call
    return forward_call(*args)
ValueError: no batch
of seven

[W1123 01:02:03 ProcessGroupNCCL.cpp:1] Warning: the process group has NOT been destroyed
"""


def test_a_traceback_keeps_the_users_own_frames_and_what_led_to_it() -> None:
    raised = raised_in(CHAINED)
    assert raised is not None
    assert raised.exception == "ValueError: no batch"
    assert raised.place == "train.py:41 in <module>"
    assert "launch/child" not in raised.text
    assert "runpy" not in raised.text
    assert "KeyError: 'tokens'\n\nDuring handling" in raised.text
    below = f'  ... raised in torch:\n  File "{TORCH}", line 1511, in _call\n    return forward_call(*args)\n'
    assert raised.text.endswith(f"    step(batch())\n{below}ValueError: no batch\nof seven")


def test_ranks_that_torch_writes_before_each_line_are_left_out() -> None:
    written = "\n".join(f"[rank3]: {line}" if line else "[rank3]:" for line in CHAINED.splitlines()[9:])
    raised = raised_in(written)
    assert raised is not None
    assert (raised.exception, raised.place) == ("ValueError: no batch", "train.py:41 in <module>")


def test_a_script_that_does_not_compile_is_named_by_its_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os\ndef broken(:\n    pass\n")
    cold = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False).stderr
    warm = subprocess.run(
        [sys.executable, "-c", f"import runpy; runpy.run_path({str(script)!r})"],
        capture_output=True,
        text=True,
        check=False,
    ).stderr
    for written in (cold, f"ready\n{cold}", warm):
        raised = raised_in(written)
        assert raised is not None
        assert raised.exception.startswith("SyntaxError: ")
        assert raised.place == "train.py:2"
        assert "def broken(:" in raised.text
        assert "runpy" not in raised.text


def test_an_exception_without_a_frame_of_the_user_shows_all_there_are() -> None:
    text = f'Traceback (most recent call last):\n  File "{TORCH}", line 3, in go\n    run()\nRuntimeError: no\n'
    raised = raised_in(text)
    assert raised is not None
    assert (raised.place, raised.text) == ("", text.strip())


def test_what_is_no_whole_traceback_raised_nothing() -> None:
    assert raised_in("") is None
    assert raised_in("usage: train.py [-h]\ntrain.py: error: no such option") is None
    assert raised_in('Traceback (most recent call last):\n  File "a.py", line 3, in go\n    run()') is None
    assert raised_in("a log says SyntaxError: later\nSyntaxError: by itself") is None


def test_a_traceback_that_was_only_logged_leads_to_nothing() -> None:
    logged = 'Traceback (most recent call last):\n  File "a.py", line 3, in go\n    run()\nOSError: retried\n'
    raised = raised_in(f"{logged}INFO goes on\n{logged.replace('OSError: retried', 'ValueError: no')}")
    assert raised is not None
    assert raised.exception == "ValueError: no"
    assert "retried" not in raised.text


GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "/home/me/gpt/train.py", line 41, in <module>
  |     fetch()
  | ExceptionGroup: 2 of 8 readers failed (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/home/me/gpt/data.py", line 12, in read
    |     return table[key]
    | KeyError: 'tokens'
    +---------------- 2 ----------------
    | Traceback (most recent call last):
    |   File "/home/me/gpt/data.py", line 19, in read
    |     raise ValueError("no batch")
    | ValueError: no batch
    +------------------------------------
"""


def test_of_an_exception_group_the_last_exception_in_it_is_told() -> None:
    raised = raised_in(GROUP)
    assert raised is not None
    assert (raised.exception, raised.place) == ("ValueError: no batch", "data.py:19 in read")
    assert raised.text.endswith("ValueError: no batch")


def test_colours_are_no_part_of_a_traceback() -> None:
    coloured = CHAINED.replace("ValueError", "\x1b[1;35mValueError\x1b[0m").replace('"/home', '"\x1b[35m/home')
    raised = raised_in(coloured.replace("Traceback (", "\x1b[0mTraceback ("))
    assert raised is not None
    assert (raised.exception, raised.place) == ("ValueError: no batch", "train.py:41 in <module>")


OURS = f"{Path(child.__file__).parents[4]}/trainer/holdfast/trainer"
LIBRARY = "/venv/lib/python3.12/site-packages"


def told(*frames: str, raised: str) -> tuple[str, str]:
    """The place and the text of an exception that came through these files, each at line 7."""
    lines = [f'  File "{file}", line 7, in go\n    call()\n' for file in frames]
    found = raised_in(f"Traceback (most recent call last):\n{''.join(lines)}{raised}\n")
    assert found is not None
    return found.place, found.text


@pytest.mark.parametrize(
    "frames",
    [
        (f"{OURS}/run.py",),
        (f"{Path(child.__file__).parents[4]}/checkpoint/holdfast/checkpoint/checkpointer.py",),
        (f"{OURS}/run.py", "/usr/lib/python3.12/copy.py"),
        ("<string>", f"{OURS}/outerstep.py"),  # the constructor of a dataclass
    ],
)
def test_a_type_error_in_the_function_that_the_script_called_is_not_said_to_be_holdfasts_own(
    frames: tuple[str, ...],
) -> None:
    place, text = told("/me/train.py", *frames, raised="TypeError: 'int' object is not iterable")
    assert place == "train.py:7 in go"
    assert "own" not in text
    deeper, _ = told("/me/train.py", f"{OURS}/run.py", *frames, raised="TypeError: 'int' object is not iterable")
    assert "a fault of Holdfast's own" in deeper


@pytest.mark.parametrize("raised", ["holdfast.api.errors.InvalidInput: step: 'x' is not accepted; give a number"])
def test_what_holdfast_says_of_a_scripts_arguments_is_no_fault_of_its_own(raised: str) -> None:
    place, text = told("/me/train.py", f"{OURS}/run.py", f"{OURS}/hostcopy.py", raised=raised)
    assert place == "train.py:7 in go"
    assert "own" not in text


def test_a_fault_of_holdfasts_own_is_said_to_be_one() -> None:
    compiled = f"{LIBRARY}/torch/_dynamo/eval_frame.py"
    error = "TypeError: Net does not support len()"
    place, text = told("/me/train.py", f"{OURS}/run.py", f"{OURS}/proofs.py", compiled, raised=error)
    assert place == "proofs.py:7 in go, a fault of Holdfast's own, called at train.py:7 in go"
    assert "... called by Holdfast:" in text
    assert "... raised in torch, a fault of Holdfast's own:" in text
    assert (text.count("proofs.py"), text.count("eval_frame.py"), text.count("run.py")) == (1, 1, 0)
    place, text = told("/me/train.py", f"{LIBRARY}/holdfast/trainer/run.py", raised="AttributeError: step")
    assert place.startswith("run.py:7 in go, a fault of Holdfast's own")
    assert told(f"{OURS}/run.py", raised="IndexError: 3")[0] == "run.py:7 in go, a fault of Holdfast's own"


@pytest.mark.parametrize(
    ("frames", "error"),
    [
        (["/me/train.py", f"{OURS}/run.py"], "holdfast.api.errors.InvalidInput: step: 3 is not accepted"),
        (["/me/train.py", f"{OURS}/run.py", "/me/model.py"], "TypeError: the script's own"),
        (["/me/train.py", f"{OURS}/run.py", f"{LIBRARY}/torch/utils/data/dataloader.py"], "TypeError: of data"),
        (["/me/train.py", f"{OURS}/run.py", f"{LIBRARY}/transformers/trainer.py"], "TypeError: of a library"),
        (["/me/train.py", f"{OURS}/run.py"], "OSError: [Errno 28] No space left on device"),
    ],
    ids=["refusal", "script", "loader", "library", "machine"],
)
def test_what_passes_through_holdfast_is_not_its_fault(frames: list[str], error: str) -> None:
    place, text = told(*frames, raised=error)
    assert "fault of Holdfast" not in place + text


@pytest.mark.parametrize("library", ["torch", "transformers", "numpy"])
def test_the_frame_of_a_library_that_raised_is_shown_as_the_librarys(library: str) -> None:
    place, text = told("/me/train.py", f"{LIBRARY}/{library}/inner.py", raised="ValueError: no")
    assert place == "train.py:7 in go"
    assert f'... raised in {library}:\n  File "{LIBRARY}/{library}/inner.py", line 7' in text


def test_what_only_looks_like_a_frame_does_no_harm() -> None:
    """A worker may write anything: Python turns no more than 4300 digits into a number."""
    frame = f'  File "x.py", line {"9" * 5000}, in f'
    assert raised_in(f"Traceback (most recent call last):\n{frame}\nValueError: 1\n") is None


def test_the_constructor_of_a_dataclass_is_not_the_users_own_line() -> None:
    raised = raised_in(
        """Traceback (most recent call last):
  File "/home/me/gpt/train.py", line 7, in train
    Checkpointer(run, model=model, optimizer=optimizer, every_steps=-1)
  File "<string>", line 16, in __init__
holdfast.api.errors.InvalidInput: every_steps: -1 is not accepted; write at least 1
"""
    )
    assert raised is not None
    assert (
        raised.exception == "holdfast.api.errors.InvalidInput: every_steps: -1 is not accepted; write at least 1"
    )
    assert raised.place == "train.py:7 in train"
    assert "<string>" not in raised.text


def test_a_trace_is_that_of_the_class_and_the_lines_whatever_the_message_says() -> None:
    def trace(text: str) -> str:
        raised = raised_in(text)
        assert raised is not None
        return raised.trace

    same = CHAINED.replace("no batch", "no batch of rank 3").replace("step 7", "step 8")
    assert trace(CHAINED) == trace(same)
    assert trace(CHAINED) != trace(CHAINED.replace("line 41", "line 42"))
    assert trace(CHAINED) != trace(CHAINED.replace("ValueError", "TypeError"))


def test_a_traceback_of_hundreds_of_lines_is_read_whole_and_told_in_a_text_that_has_an_end(tmp_path: Path) -> None:
    frame = f'  File "{TORCH}", line 1511, in _call\n    return forward_call(*args)\n'
    own = '  File "/home/me/gpt/train.py", line 41, in <module>\n    step(batch())\n'
    long = f"Traceback (most recent call last):\n{own}{frame * 400}ValueError: no batch\n"
    (tmp_path / "log").write_text("step 7\n" * 50_000 + long)
    raised = raised_in(logs.ending(tmp_path / "log", since=0))
    assert raised is not None
    assert (raised.exception, raised.place) == ("ValueError: no batch", "train.py:41 in <module>")

    wordy = raised_in(long.replace("no batch", "x" * 50_000))
    assert wordy is not None
    assert max(len(wordy.exception), len(wordy.text), len(logs.tail("y" * 50_000))) == 16 << 10
