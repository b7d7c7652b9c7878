"""`holdfast doctor`."""

import click

from holdfast.api.errors import Unavailable
from holdfast.cli.doctor.finding import Finding, Level, worst
from holdfast.cli.exitcode import ExitCode
from holdfast.cli.opening import look_around
from holdfast.cli.output import Format, Shown, emit, format_option
from holdfast.cli.target import JobWord, Place, Target, place_of, target_options
from holdfast.cli.view.findings import findings_text


@click.command()
@target_options(JobWord.NONE)
@format_option
def doctor(target: Target, form: Format) -> ExitCode:
    """Check an installation in a cluster, or this machine for runs on it, and say what is missing.

    Exits with 1 when anything fails.
    """
    findings = _examined(target)
    failed = [each.what for each in findings if each.level is Level.FAIL]
    emit(Shown(value=findings, table=lambda: findings_text(findings), names=lambda: failed), form)
    return ExitCode.FAILED if worst(findings) is Level.FAIL else ExitCode.OK


def _examined(target: Target) -> tuple[Finding, ...]:
    try:
        place = place_of(target, look_around)
    except Unavailable:
        place = Place.STATE_DIRECTORY  # nothing is here yet: whether a run could be is what is asked
    if place is not Place.CLUSTER:
        from holdfast.cli.doctor.machine import examine_machine, look

        return examine_machine(look(target))
    from holdfast.cli.cluster.kubeapi import connect
    from holdfast.cli.cluster.proxiedline import Installation
    from holdfast.cli.doctor.checks import examine
    from holdfast.cli.doctor.gathering import Gathering

    api = connect(target)
    installation = Installation.of(target.holdfast_namespace, target.holdfast_service)
    gathering = Gathering(api, installation, target.namespace or api.namespace)
    return examine(gathering.facts())
