"""A process as a container engine would start it, as far as one machine can: the replayed image as its root, read-only,
no shell in it, another user, no capabilities but those named, and a file system of its own for results and /tmp.

python jail.py SPEC, where SPEC is JSON: {root, mounts: [[source, target, "ro"|"rw"]], tmpfs: [...], user, workdir, env,
argv, capabilities, new_privileges}. To be started by `unshare --mount` as root.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
_LAST_CAPABILITY = 40
CAPABILITIES = {"NET_RAW": 13, "SYS_NICE": 23}


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def main(spec: dict[str, Any]) -> None:
    root = Path(spec["root"])
    _mount("--make-rprivate", "/")
    _mount("--bind", str(root), str(root))
    for source, target, mode in spec["mounts"]:
        place = root / target.lstrip("/")
        _mount("--rbind", source, str(place))
        if mode == "ro":
            _mount("-o", "remount,bind,ro", str(place))
    for target in spec["tmpfs"]:
        _mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", str(root / target.lstrip("/")))
    _mount("-o", "remount,bind,ro", str(root))
    os.chroot(root)
    os.chdir(spec["workdir"])
    libc = ctypes.CDLL(None, use_errno=True)
    kept = {CAPABILITIES[name] for name in spec["capabilities"]}
    for capability in range(_LAST_CAPABILITY + 1):
        if capability not in kept:
            libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    if not spec["new_privileges"]:
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.setgroups([])
    os.setgid(spec["user"])
    os.setuid(spec["user"])
    os.execvpe(spec["argv"][0], spec["argv"], spec["env"])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
