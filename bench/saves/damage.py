"""Programs that damage what was saved, or kill those who save, and look whether anybody notices."""

import os
import random
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torch.distributed.checkpoint.api import CheckpointException

from saves import stock
from saves.ours import POINTS, Ours, checkpoints
from saves.ranks import Crew
from saves.saving import ours_folder, stock_folder
from saves.stock import Stock, Way
from saves.subject import Size, Subject
from saves.turns import Samples

HOLE_BYTES: Final = 4096
TRUNCATED_BYTES_MAX: Final = 1 << 16
LAST_POINT: Final = POINTS[-1]  # after-rename: the save that is killed there is committed


@dataclass(frozen=True)
class Course:
    """How often to damage in each manner, and what."""

    size: Size
    folder: Path
    tries: int


@dataclass(frozen=True)
class Death:
    """The rank that dies in its second save, and the point it dies at."""

    size: Size
    folder: Path
    rank: int
    point: str


Harm = Callable[[Path, random.Random], None]


def flip_a_bit(folder: Path, chance: random.Random) -> None:
    file, position = _somewhere(folder, chance)
    content = bytearray(file.read_bytes())
    content[position] ^= 1 << chance.randrange(8)
    file.write_bytes(content)


def punch_a_hole(folder: Path, chance: random.Random) -> None:
    """Lose a page that held anything but zeros."""
    while True:
        file, position = _somewhere(folder, chance)
        content = bytearray(file.read_bytes())
        lost = content[position : position + HOLE_BYTES]
        if any(lost):
            content[position : position + HOLE_BYTES] = bytes(len(lost))
            file.write_bytes(content)
            return


def cut_the_end(folder: Path, chance: random.Random) -> None:
    file, _ = _somewhere(folder, chance)
    size = file.stat().st_size
    os.truncate(file, size - chance.randint(1, min(size, TRUNCATED_BYTES_MAX)))


HARMS: Final[dict[str, Harm]] = {"flip": flip_a_bit, "hole": punch_a_hole, "truncation": cut_the_end}


def harm(crew: Crew, course: Course) -> Samples:
    """For each harm, and for `dcp` and the harm: 1.0 where a load was not misled by it, else 0.0.

    Holdfast is not misled when it restores the checkpoint before, whole; DCP has none, and only has to raise.
    """
    subject = Subject(course.size, ranks=crew.size)
    _save_twice(subject, ours_folder(course.folder))
    synchronous = Stock(subject, Way.SYNC)
    synchronous.save(stock_folder(course.folder))
    samples: Samples = {"unharmed": [_restores(subject, ours_folder(course.folder), step=2)]}
    for name, inflict in HARMS.items():
        for number in range(course.tries):
            chance = random.Random(f"{name} {number}")
            trial = _copy(ours_folder(course.folder))
            inflict(checkpoints(trial)[-1], chance)
            samples.setdefault(name, []).append(_restores(subject, trial, step=1))
            trial = _copy(stock_folder(course.folder))
            inflict(trial, chance)
            samples.setdefault(f"dcp {name}", []).append(_is_refused(subject, trial))
    synchronous.close()
    return samples


def die_in_a_save(crew: Crew, death: Death) -> bool:
    """Save twice; the second time a rank is killed, as the kernel would. That this rank lived on."""
    subject = Subject(death.size, ranks=crew.size)
    is_armed = False

    def reached(point: str) -> None:
        if is_armed and crew.rank == death.rank and point == death.point:
            os.kill(os.getpid(), signal.SIGKILL)

    ours = Ours(subject, ours_folder(death.folder), reached=reached)
    ours.load()
    subject.fill(1)
    ours.save()
    ours.wait()
    crew.meet()
    is_armed = True
    subject.fill(2)
    ours.save()
    ours.close()
    return True


def look_back(crew: Crew, death: Death) -> float:
    """1.0 when the newest checkpoint that had been committed is restored, whole, by all ranks."""
    subject = Subject(death.size, ranks=crew.size)
    step = 2 if death.point == LAST_POINT else 1
    return 1.0 - crew.worst(1.0 - _restores(subject, ours_folder(death.folder), step=step))


def _save_twice(subject: Subject, folder: Path) -> None:
    ours = Ours(subject, folder)
    ours.load()
    for version in (1, 2):
        subject.fill(version)
        ours.save()
        ours.wait()
    ours.close()


def _restores(subject: Subject, folder: Path, *, step: int) -> float:
    """1.0 when step `step`, which is also the version of its values, is restored from `folder`."""
    subject.spoil()
    ours = Ours(subject, folder)
    restored = ours.load()
    ours.close()
    return float(restored == step and subject.holds(step))


def _is_refused(subject: Subject, folder: Path) -> float:
    subject.spoil()
    try:
        stock.load(subject, folder)
    except (Exception, CheckpointException):  # However it refuses, it is not misled.
        return 1.0
    return float(subject.holds(2))


def _copy(folder: Path) -> Path:
    trial = folder.with_name(f"{folder.name}-trial")
    shutil.rmtree(trial, ignore_errors=True)
    shutil.copytree(folder, trial)
    return trial


def _somewhere(folder: Path, chance: random.Random) -> tuple[Path, int]:
    """A place in one of the files that hold tensors."""
    files = sorted(folder.glob("*.distcp"))
    file = chance.choices(files, weights=[each.stat().st_size for each in files])[0]
    return file, chance.randrange(file.stat().st_size)
