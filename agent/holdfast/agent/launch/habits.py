"""What a script is seen to do beside training, from outside its processes: what it imports, and what it starts."""

from collections.abc import Callable, Iterable

from holdfast.agent.launch.importlog import ImportLogs
from holdfast.agent.launch.learned import LearnedImports
from holdfast.agent.launch.preload import PreloadList
from holdfast.agent.launch.settings import LauncherSettings
from holdfast.agent.launch.spawned import SpawnCall, Spawns


class ScriptHabits:
    """Watches the worker processes of one launcher, and learns for those to come."""

    def __init__(
        self,
        settings: LauncherSettings,
        *,
        season: Callable[[PreloadList], None],
        on_spawned: Callable[[int, SpawnCall], None],
        clock: Callable[[], float],
    ) -> None:
        """`season` is given the list of what to import beforehand when that has grown. `on_spawned` is as in
        `Spawns`; `clock` gives seconds since 1970.
        """
        self._season = season
        self._imports = LearnedImports(
            settings.preload, settings.entrypoint, settings.environment, settings.run_dir
        )
        self._logs = ImportLogs(settings.run_dir, self._learn)
        self._spawns = Spawns(settings.run_dir, on_spawned, clock=clock)

    @property
    def wanted(self) -> PreloadList:
        """What to import beforehand, as far as it is known."""
        return self._imports.wanted

    def leave(self, worked: PreloadList) -> None:
        """A warm parent has worked through the list: this is what it had to leave."""
        self._imports.leave(worked)

    def learns_from(self, local_rank: int) -> bool:
        """Whether that worker is to write what it imports: what one imports, the others do."""
        return self._imports.learns and local_rank == 0

    def watch(self, pid: int, local_rank: int) -> None:
        """A worker has started."""
        self._spawns.watch(pid)
        if self.learns_from(local_rank):
            self._logs.watch(pid)

    def trains(self, pid: int) -> None:
        """It has shown a sign of training."""
        self._logs.trains(pid)

    def attached(self, pid: int) -> None:
        """It uses `holdfast.trainer`, so that it trains by itself."""
        self._logs.trains(pid)
        self._spawns.forget(pid)

    def ended(self, pid: int) -> None:
        """It is gone."""
        self._logs.ended(pid)
        self._spawns.ended(pid)

    def look(self) -> None:
        """Look at each; called every second or so."""
        self._logs.look()
        self._spawns.look()

    def _learn(self, names: Iterable[str], changed: Iterable[str]) -> None:
        if self._imports.learn(names, changed):
            self._season(self._imports.wanted)
