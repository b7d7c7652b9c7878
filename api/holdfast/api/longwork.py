"""What is known of a job's rare long work: an export, a regular expression, a call that holds the interpreter.

A rank that takes far longer than a step may work, wait on purpose, or hang. What tells them apart is whether the
kernel shows its process working, and what such stops came to before. It is learned for each job, and kept with it.
"""

import msgspec

UNKNOWN_WORK_S = 30.0
"""For a process that works, while nothing is known of how long such work of the job takes."""
WORK_S_MAX = 60.0
"""Beyond this it is a hang of the script, whatever such work took before."""
ALLOWED = 2.0
"""Times what such a stop took before."""
LINES_OF_A_SCRIPT = 2
"""At more lines than these a script has no long work, as a rule: that a rank stood at each has another reason."""
STOPS_KEPT = 32


class LongStop(msgspec.Struct, frozen=True, omit_defaults=True):
    """A Hang of a `rank` (None: nobody stood out) whose process the kernel would run: after which `step` it stood,
    which incident tells of it, whether its process `worked`, and at which `line` of the script it stood
    ("": Unknown, or it was in a collective there). `held`: it was in one that others had passed, so it is no stop
    of the script's, whether its process spun or slept.
    """

    rank: int | None
    step: int
    incident: str
    worked: bool = False
    line: str = ""
    held: bool = False


class LongWork(msgspec.Struct, frozen=True, omit_defaults=True):
    """What long stops took that ended by themselves, in seconds without a step: `worked_s` the longest work,
    `waited_s` by rank the longest without work. `stops` are those that became a Hang, oldest first.
    """

    worked_s: float = 0.0
    waited_s: dict[int, float] = {}
    stops: tuple[LongStop, ...] = ()

    def allowed_s(self, rank: int | None, step: int, *, works: bool) -> float:
        """How long `rank` may stand after `step`, where that is longer than the time of a step; 0.0: no longer.

        Whether a stop is the script's own shows when it comes again at the same place. So it has all the time
        there then, and may show that it ends.
        """
        known = [each for each in self.stops if each.rank == rank and not each.held]
        if any(each.step == step or self.is_scripts(each) for each in known):
            return WORK_S_MAX
        if not works:
            waited_s = 0.0 if rank is None else self.waited_s.get(rank, 0.0)
            return min(WORK_S_MAX, ALLOWED * waited_s)
        if any(each.worked for each in self.stops):
            return WORK_S_MAX
        return min(WORK_S_MAX, max(UNKNOWN_WORK_S, ALLOWED * self.worked_s))

    def is_scripts(self, stop: LongStop) -> bool:
        """Whether it is evidence about the script: it worked, or the rank stood more than once at its line."""
        alike = [each for each in self.stops if each.rank == stop.rank and each.line == stop.line]
        return stop.worked or (bool(stop.line) and len(alike) > 1)

    def may_be_scripts(self, rank: int | None) -> bool:
        """Whether another stop of `rank` may turn out to be at a line where it stood before."""
        lines = {each.line for each in self.stops if each.rank == rank}
        return 0 < len(lines) <= LINES_OF_A_SCRIPT and "" not in lines

    def was_held(self, rank: int | None) -> bool:
        """Whether a stop of `rank` turned out to be in a collective that others had passed: it may spin there."""
        return any(each.held for each in self.stops if each.rank == rank)

    def after(self, rank: int, took_s: float, *, worked: bool) -> "LongWork":
        """With a stop that came to its end by itself."""
        if worked:
            return msgspec.structs.replace(self, worked_s=max(self.worked_s, took_s))
        longest_s = max(took_s, self.waited_s.get(rank, 0.0))
        return msgspec.structs.replace(self, waited_s={**self.waited_s, rank: longest_s})

    def with_stops(self, stops: tuple[LongStop, ...]) -> "LongWork":
        """With these stops, of which the newest are kept."""
        return msgspec.structs.replace(self, stops=stops[-STOPS_KEPT:])
