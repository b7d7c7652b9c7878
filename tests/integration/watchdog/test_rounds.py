"""`holdfast rounds` and `rollback` of a job at a real watchdog, whose rounds tell how they were started."""

import asyncio
import json
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

from click.testing import CliRunner
from msgspec.structs import replace
from patience import patient
from peers import JOB, TOKEN, policy_of, rigged

from holdfast.api.membership import RunDescribed, WorkerExited
from holdfast.api.runmanifest import Code, RunManifest
from holdfast.cli.main import holdfast


def committed(tree: Path, content: str) -> str:
    """The commit of a work tree with one script."""
    (tree / "train.py").write_text(content)
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    if not (tree / ".git").exists():
        subprocess.run(["git", "-C", tree, "init", "-q"], check=True)
    subprocess.run(["git", "-C", tree, "add", "-A"], check=True)
    subprocess.run(["git", "-C", tree, *identity, "commit", "-qm", "a"], check=True)
    done = subprocess.run(["git", "-C", tree, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return done.stdout.strip()


async def test_what_changed_is_told_and_the_code_of_before_is_laid_out(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    token = tmp_path / "token"
    token.write_text(TOKEN)
    async with rigged() as rig:
        await rig.submit(policy_of(nodes=1))
        launcher = await rig.launcher("m1")
        shown = await launcher.enter()
        code = Code(directory=str(tree), root=str(tree), commit=committed(tree, "print(1)\n"))
        manifest = RunManifest(1, shown.number, ("python", "train.py"), code)
        await launcher.say(RunDescribed(shown.number, manifest))
        await launcher.say(WorkerExited(shown.number, 0, age_s=0.0, signal=9, error="Killed"))
        healed = await launcher.enter(after=shown.number)
        code = replace(code, commit=committed(tree, "print(2)\n"))
        await launcher.say(RunDescribed(healed.number, replace(manifest, round=healed.number, code=code)))

        async def asked(*words: str) -> str:
            where = ["--watchdog", urlsplit(rig.url("/")).netloc, "--token-file", str(token)]
            ran = await asyncio.to_thread(CliRunner().invoke, holdfast, [*words, *where])
            assert ran.exception is None, ran.output
            return ran.stdout

        async def changed() -> bool:
            told = json.loads(await asked("rounds", JOB, "-o", "json"))
            return [[each["name"] for each in round["changes"]] for round in told] == [[], ["commit"]]

        async with asyncio.timeout(patient(30)):
            while not await changed():  # noqa: ASYNC110 - a command is asked, nobody tells
                await asyncio.sleep(0.05)
        folder = tmp_path / "before"
        said = await asked("rollback", str(shown.number), "--to", str(folder), "--job", JOB)
        assert said == f"cd {folder} && python train.py\n"
        assert (folder / "train.py").read_text() == "print(1)\n"
        assert (tree / "train.py").read_text() == "print(2)\n"
