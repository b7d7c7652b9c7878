"""An audit: the script is asked for its subject, and the probes that it offers something for are run."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from probed_models import Attention, Model, TokenChoice, one_thread, seeded, subject, trainable

from holdfast.api.audit import Audit
from holdfast.api.errors import InvalidInput
from holdfast.trainer.probes import Probe, RoutingWatch, Soundness, Subject
from holdfast.trainer.probes.program import MODULE, audit, subject_of

__all__ = ["one_thread"]


@pytest.fixture(autouse=True)
def as_found(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop(MODULE, None)


def script(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "script.py"
    path.write_text(text)
    return path


def test_what_is_offered_is_probed_and_of_the_rest_it_is_said_what_lacks() -> None:
    model = seeded(Model)
    least = audit(subject(model))
    assert [each.probe for each in least.answers] == [Probe.CAUSALITY]
    assert set(least.not_run) == set(Probe) - {Probe.CAUSALITY}
    assert least.not_run[Probe.AGREEMENT] == "the script gives no Subject(reference=...)"
    most = audit(trainable(model, world_size=8, reference=model, watches=[RoutingWatch()]))
    assert most.not_run == {}
    assert {each.probe for each in most.answers} == set(Probe)
    # Nothing was fed to the watch, and there is none of scales.
    unknown = [each.probe for each in most.answers if each.verdict is Soundness.UNKNOWN]
    assert unknown == [Probe.SCALING, Probe.ROUTING]


def test_what_is_asked_for_is_probed_and_unknown_where_the_subject_gives_nothing() -> None:
    found = audit(subject(seeded(Model)), [Probe.DETERMINISM])
    assert {each.probe for each in found.answers} == {Probe.DETERMINISM}
    assert (found.verdict, found.not_run) == (Soundness.UNKNOWN, {})


def test_a_watch_that_the_model_feeds_answers() -> None:
    watch, model = RoutingWatch(), seeded(lambda: Model(mixer=TokenChoice()))

    def tell(module: object, given: object, output: object) -> None:
        watch.update("mixer", [64, 64], dropped=64)

    model.mixer.register_forward_hook(tell)  # type: ignore[union-attr]
    found = audit(subject(model, watches=[watch]), [Probe.ROUTING])
    assert [(each.verdict, each.where) for each in found.answers] == [(Soundness.SUSPECT, "mixer")]


def test_a_probe_in_which_the_model_raises_is_unknown_and_the_others_are_run() -> None:
    model = seeded(lambda: Model(attention=Attention(1)))
    found = audit(trainable(model, loss=lambda outputs, targets: outputs.nothing))
    by_probe = {each.probe: each for each in found.answers}
    assert by_probe[Probe.CAUSALITY].verdict is Soundness.SUSPECT
    assert by_probe[Probe.DETERMINISM].verdict is Soundness.UNKNOWN
    assert (
        "the model raised AttributeError: 'Tensor' object has no attribute 'nothing' (test_model_audit.py, line"
        in (by_probe[Probe.DETERMINISM].says)
    )
    assert found.verdict is Soundness.SUSPECT


def test_no_answer_is_no_sound_one() -> None:
    assert Audit(answers=(), not_run={}).verdict is Soundness.UNKNOWN


RIGHT = """
import sys, torch, beside
from holdfast.trainer.probes import Subject
def audit(): return Subject(model=torch.nn.Embedding(9, 2), inputs=torch.tensor([[int(sys.argv[1]), 2]]))
if __name__ == "__main__": raise RuntimeError
"""


def test_a_script_is_given_its_arguments_and_its_folder_and_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("")
    found = subject_of(script(tmp_path, RIGHT), "audit", ["7"])
    assert isinstance(found, Subject)
    assert found.tokens.tolist() == [[7, 2]]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "--entry: 'audit' is not accepted; define `def audit.. -> Subject` in script.py"),
        ("audit = 3", "--entry: 'audit' is not accepted"),
        ("def audit(): return 3", "audit..: 'int' is not accepted; return a holdfast.trainer.probes.Subject"),
        ("\n1 / 0", "importing it raised ZeroDivisionError: division by zero .script.py, line 2."),
        (
            "def audit():\n  import json\n  json.loads('')",
            "audit.. raised JSONDecodeError: .* .script.py, line 3.",
        ),
        ("raise SystemExit(4)", "importing it must not exit .it did, with 4.; .* arguments after --"),
        ("def broken(:", "importing it raised SyntaxError"),
        (
            "from holdfast.trainer.probes import Subject\ndef audit(): return Subject(model=1, inputs=2)",
            "^model: 'int' is not accepted; hand over a torch.nn.Module",
        ),
    ],
)
def test_a_script_that_offers_nothing_is_refused_in_words(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        subject_of(script(tmp_path, text), "audit", [])


def test_a_file_that_is_not_there_or_no_script_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="there is no such file"):
        subject_of(tmp_path / "none.py", "audit", [])
    other = tmp_path / "notes.txt"
    other.write_text("")
    with pytest.raises(InvalidInput, match="name a Python file"):
        subject_of(other, "audit", [])
