"""The browser that the page is tested in: Debian's chromium.

python tests/browser/chromium.py      installs it where it is missing (needs root and apt-get)
"""

import shutil
import subprocess
import sys
from pathlib import Path

INSTALL_S_MAX = 1800.0
PATH = Path("/usr/bin/chromium")
# No sandbox: tests run as root in containers. No GPU and no talk of its own: the same picture everywhere.
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")


class BrowserMissing(RuntimeError):
    """There is no chromium, and none could be installed. The text ends with what was said last."""


def chromium() -> Path:
    """Where it is; installed now where it is not there yet. Raises BrowserMissing."""
    if PATH.exists():
        return PATH
    if shutil.which("apt-get") is None:
        raise BrowserMissing(f"there is no {PATH}, and no apt-get to install it: install chromium there")
    for words in (("update",), ("install", "--yes", "--no-install-recommends", "chromium")):
        _run("apt-get", *words)
    if not PATH.exists():
        raise BrowserMissing(f"apt-get installed chromium, and there is no {PATH}")
    return PATH


def _run(*command: str) -> None:
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        timeout=INSTALL_S_MAX,
        check=False,
    )
    if done.returncode:
        last = "\n".join(done.stdout.splitlines()[-5:])
        raise BrowserMissing(f"there is no {PATH}; {' '.join(command)} ended with {done.returncode}:\n{last}")


if __name__ == "__main__":
    try:
        print(chromium())
    except (BrowserMissing, subprocess.TimeoutExpired) as error:
        sys.exit(str(error))
