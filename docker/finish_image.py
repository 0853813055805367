"""The image's last build step: a results directory, an interpreter for the wire clock, bytecode, and no pip.

python finish_image.py VENV APP. Runs in the build stage, as root; needs nothing but the standard library.
"""

from __future__ import annotations

import compileall
import os
import shutil
import struct
import sys
from pathlib import Path

USER = 10001
_CAP_NET_RAW, _CAP_SYS_NICE = 13, 23
# linux/capability.h: struct vfs_cap_data, revision 2, with the effective bit; two pairs of (permitted, inheritable).
_VFS_CAP_REVISION_2, _EFFECTIVE = 0x02000000, 1


def main(venv: Path, app: Path) -> None:
    """Finishes the image whose environment is in `venv` and whose sources are in `app`."""
    results = app / "results"
    results.mkdir(exist_ok=True)
    os.chown(results, USER, USER)
    results.chmod(0o770)
    _make_wire_interpreter(venv)
    for installed in (venv / "lib").glob("python*/site-packages/pip*"):
        shutil.rmtree(installed)
    for script in (venv / "bin").glob("pip*"):
        script.unlink()
    for tree in (app, venv / "lib"):
        compileall.compile_dir(tree, quiet=2, workers=1)


def _make_wire_interpreter(venv: Path) -> None:
    """`python-wire`: may open packet sockets (NET_RAW) and send in real time (SYS_NICE) where its container was given
    both, though it is not root.

    A container's capabilities reach a user other than root only through the file that is executed. Where one of them is
    withheld the kernel refuses to execute this file, so that everything else runs on the plain interpreter.
    """
    python = venv / "bin" / "python"
    wire = python.with_name("python-wire")
    shutil.copyfile(python.resolve(), wire)
    wire.chmod(0o755)
    permitted = 1 << _CAP_NET_RAW | 1 << _CAP_SYS_NICE
    capabilities = struct.pack("<IIIII", _VFS_CAP_REVISION_2 | _EFFECTIVE, permitted, 0, 0, 0)
    os.setxattr(wire, "security.capability", capabilities)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
