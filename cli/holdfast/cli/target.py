"""Which job of which installation a command is about, from what the user said and where it was said.

One rule, in this order; what contradicts it is refused:

1. `kubectl holdfast` is about a cluster, always.
2. `--watchdog` is about the watchdog at that address, `--state-dir` about that run on this machine.
3. `--context`, `--kubeconfig`, `-n` and `-A` are about a cluster.
4. A run under ./.holdfast is what is meant where there is one.
5. `KUBECONFIG`, or being in a pod, means the cluster. A ~/.kube/config alone does not: whoever means it says so.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import click

from holdfast.api.errors import InvalidInput, Problem, Unavailable

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
DEFAULT_HOLDFAST_NAMESPACE = "holdfast"
DEFAULT_HOLDFAST_SERVICE = "holdfast-watchdog:http"


class Program(Enum):
    """By which name the command line was called."""

    HOLDFAST = "holdfast"
    KUBECTL = "kubectl holdfast"


class Place(Enum):
    """Where jobs are looked for."""

    STATE_DIRECTORY = "state directory"
    ADDRESS = "address"
    CLUSTER = "cluster"


class Surroundings(Enum):
    """What there is where the command was called, the strongest first."""

    LOCAL_RUN = "a run under ./.holdfast"
    CLUSTER_ACCESS = "KUBECONFIG, or a pod's own access"
    NOTHING = "nothing"


class JobWord(Enum):
    """How a command is told the job."""

    ARGUMENT = "argument"
    OPTION = "option"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What the user said. `job` is NAME or NAMESPACE/NAME, None for the only one there is."""

    program: Program = Program.HOLDFAST
    job: str | None = None
    state_dir: Path | None = None
    watchdog: str | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    namespace: str | None = None
    all_namespaces: bool = False
    context: str | None = None
    kubeconfig: Path | None = None
    holdfast_namespace: str = DEFAULT_HOLDFAST_NAMESPACE
    holdfast_service: str = DEFAULT_HOLDFAST_SERVICE


def place_of(target: Target, surroundings: Callable[[], Surroundings]) -> Place:
    """Where to look. `surroundings` is asked only when no flag says it. Raises InvalidInput, Unavailable."""
    for flag, file in (("--token-file", target.token_file), ("--ca-file", target.ca_file)):
        if file is not None and target.watchdog is None:
            raise InvalidInput(Problem(flag, str(file), "give it together with --watchdog; nothing else reads it"))
    local = {"--watchdog": target.watchdog, "--state-dir": target.state_dir}
    named = [flag for flag, value in local.items() if value is not None]
    of_cluster = {
        "kubectl holdfast": target.program is Program.KUBECTL,
        "--context": target.context is not None,
        "--kubeconfig": target.kubeconfig is not None,
        "--namespace": target.namespace is not None,
        "--all-namespaces": target.all_namespaces,
    }
    cluster = next((flag for flag, is_given in of_cluster.items() if is_given), None)
    if named and cluster:
        raise InvalidInput(Problem(named[0], local[named[0]], f"leave it out; {cluster} means a cluster"))
    if len(named) == 2:
        raise InvalidInput(Problem(named[0], local[named[0]], f"give either this or {named[1]}"))
    if named:
        return Place.ADDRESS if target.watchdog is not None else Place.STATE_DIRECTORY
    if cluster:
        return Place.CLUSTER
    match surroundings():
        case Surroundings.LOCAL_RUN:
            return Place.STATE_DIRECTORY
        case Surroundings.CLUSTER_ACCESS:
            return Place.CLUSTER
        case Surroundings.NOTHING:
            raise Unavailable(
                f"no run was found under {Path('.holdfast').absolute()}; name one with --state-dir, a watchdog "
                "with --watchdog, or a cluster with --context, --namespace or KUBECONFIG"
            )


def split_job(named: str, namespace: str) -> tuple[str, str]:
    """Namespace and name of NAME or NAMESPACE/NAME. Raises InvalidInput."""
    first, slash, second = named.partition("/")
    parts = (first, second) if slash else (namespace, first)
    if not all(parts) or "/" in parts[1]:
        raise InvalidInput(Problem("job", named, "write NAME, or NAMESPACE/NAME"))
    return parts


def only_one(names: tuple[str, ...], where: str) -> str:
    """The one job there is. Raises InvalidInput naming those to choose from."""
    if len(names) == 1:
        return names[0]
    shown = ", ".join(names[:10]) + (" and more" if len(names) > 10 else "")
    fix = f"name one of those in {where}: {shown}" if names else f"there is no job in {where}"
    raise InvalidInput(Problem("job", "(none named)", fix))


_PLACE_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option("-n", "--namespace", metavar="NAME", help="The job's namespace in a cluster."),
    click.option("--context", metavar="NAME", help="The kubeconfig context to use."),
    click.option("--kubeconfig", type=click.Path(path_type=Path, dir_okay=False), help="The kubeconfig file."),
    click.option(
        "--holdfast-namespace",
        metavar="NAME",
        envvar="HOLDFAST_NAMESPACE",
        default=DEFAULT_HOLDFAST_NAMESPACE,
        show_default=True,
        show_envvar=True,
        help="Where Holdfast itself is installed.",
    ),
    click.option(
        "--holdfast-service",
        metavar="NAME:PORT",
        envvar="HOLDFAST_SERVICE",
        default=DEFAULT_HOLDFAST_SERVICE,
        show_default=True,
        show_envvar=True,
        help="The watchdog's service; https:NAME:PORT where it has TLS.",
    ),
    click.option(
        "--state-dir",
        type=click.Path(path_type=Path, file_okay=False),
        help="A run on this machine; by default the one used last under ./.holdfast.",
    ),
    click.option("--watchdog", metavar="HOST:PORT", help="A watchdog by its address."),
    click.option(
        "--token-file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="File with the token for that watchdog.",
    ),
    click.option(
        "--ca-file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="CA certificate (PEM) to trust; enables TLS.",
    ),
)
_ALL_NAMESPACES_OPTION = click.option("-A", "--all-namespaces", is_flag=True, help="The jobs of every namespace.")


def target_options(word: JobWord, *, of_many: bool = False) -> Callable[[Decorated], Decorated]:
    """Give a command the options that say what it is about; it receives them as one `target`.

    `of_many`: it may be about the jobs of every namespace.
    """

    def decorate(command: Decorated) -> Decorated:
        @functools.wraps(command)  # which keeps the options that decorators below have put on it
        def gathered(**given: Any) -> Any:
            program = click.get_current_context().find_root().obj
            said = {name: given.pop(name) for name in _FIELDS if name in given}
            program = program if isinstance(program, Program) else Program.HOLDFAST
            return command(target=Target(program=program, **said), **given)

        wrapped: Any = gathered
        for option in reversed(_PLACE_OPTIONS):
            wrapped = option(wrapped)
        if of_many:
            wrapped = _ALL_NAMESPACES_OPTION(wrapped)
        if word is JobWord.ARGUMENT:
            wrapped = click.argument("job", required=False)(wrapped)
        if word is JobWord.OPTION:
            wrapped = click.option("-j", "--job", metavar="NAME", help="The job; not needed when there is one.")(
                wrapped
            )
        return wrapped  # type: ignore[no-any-return]  # click's decorators keep what the caller gave

    return decorate


_FIELDS = frozenset(each.name for each in fields(Target)) - {"program"}
