"""The browser that the page is tested in: Debian's chromium.

python tests/browser/chromium.py      installs it where it is missing (needs root and apt-get)
"""

import shutil
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "servers"))

from debian_packages import PackagesMissing, install_packages

PATH = Path("/usr/bin/chromium")
# No sandbox: tests run as root in containers. No GPU and no talk of its own: the same picture everywhere.
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")


class BrowserMissing(RuntimeError):
    """There is no chromium, and none could be installed. The text says why."""


def chromium() -> Path:
    """Where it is; installed now where it is not there yet. Raises BrowserMissing."""
    if PATH.exists():
        return PATH
    if shutil.which("apt-get") is None:
        raise BrowserMissing(f"there is no {PATH}, and no apt-get to install it: install chromium there")
    try:
        install_packages(_missing)
    except PackagesMissing as error:
        raise BrowserMissing(f"there is no {PATH}: {error}") from error
    if _missing():
        raise BrowserMissing(f"apt-get installed chromium, and there is no {PATH}")
    return PATH


def _missing() -> list[str]:
    return [] if PATH.exists() else ["chromium"]


if __name__ == "__main__":
    try:
        print(chromium())
    except BrowserMissing as error:
        sys.exit(str(error))
