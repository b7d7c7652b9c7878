"""Where the example lies that `holdfast demo` trains: a wheel carries it, a checkout has it at its root."""

from pathlib import Path

from holdfast.api.errors import Unavailable

HERE = Path(__file__).resolve().parent
NAME = "bytes"


def example_job_file(here: Path = HERE) -> Path:
    """The job file of the example; its script is beside it. Raises Unavailable when this Holdfast has none.

    `here` is the folder of this module. In a checkout that is cli/holdfast/cli, three folders below its root,
    which comes first: an editable installation may have left an older copy beside its metadata.
    """
    for folder in (*here.parents[2:3], here):
        file = folder / "examples" / NAME / "job.yaml"
        if file.is_file():
            return file
    raise Unavailable(
        f"the example is not beside {here}: install Holdfast from its wheel or sdist, or use a whole checkout"
    )
