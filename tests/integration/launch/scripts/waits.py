"""An unmodified worker: says what it was given, starts a child of its own, then waits or ends as asked."""

import json
import os
import subprocess
import sys
import time

names = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_PORT",
    "HOLDFAST_ROUND",
    "TORCHELASTIC_RESTART_COUNT",
)
child = subprocess.Popen(["sleep", "600"])
print(
    json.dumps({name: os.environ[name] for name in names} | {"pid": os.getpid(), "child": child.pid}), flush=True
)
what = sys.argv[1] if len(sys.argv) > 1 else "wait"
if what == "fail":
    sys.stderr.write("the loss is not a number\n")
    sys.exit(3)
if what == "finish":
    child.kill()
    child.wait()
    sys.exit(0)
time.sleep(600)
