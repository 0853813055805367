"""The image without a container engine: the Dockerfile's own COPY lines and build steps carried out in a directory, and
programs run in it as a container would run them.

What is replayed: .dockerignore and every COPY from the context; the last build step (`finish_image.py`) as it stands;
the final stage's environment, working directory, user, entry point and health check; a read-only root without a shell.
What is not: the base image (this machine's Python and C library stand in for it) and the installation of
requirements-image.lock (the packages of this environment stand in, shown to be the same versions by a test).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support import jail
from tests.support.dockerfile import Context, Stage, read_dockerfile
from tests.support.locust_runs import ROOT

# Where a dynamically linked Python finds the C library and its own.
_LIBRARIES = ("/lib", "/lib64", "/usr/lib")


@dataclass
class ReplayedImage:
    """`root` is the image's file system; `final` the Dockerfile's last stage."""

    root: Path
    final: Stage

    @classmethod
    def build(cls) -> ReplayedImage:
        stages = read_dockerfile(ROOT / "Dockerfile")
        build, final = stages
        # Not pytest's own folder, which nobody else may enter.
        root = Path(tempfile.mkdtemp(prefix="tailgate-image-"))
        root.chmod(0o755)
        context = Context(ROOT)
        for sources, destination in build.copies:
            for source in sources:
                _copy(context, source, root / destination.lstrip("/"), destination.endswith("/"))
        environment = root / "opt" / "venv"
        venv.create(environment, with_pip=False, symlinks=True)
        packages = next((environment / "lib").glob("python*/site-packages"))
        (packages / "stand-in.pth").write_text("/stand-in\n")
        script = Path(sys.executable).with_name("locust").read_text().partition("\n")[2]
        (environment / "bin" / "locust").write_text(f"#!/opt/venv/bin/python\n{script}")
        (environment / "bin" / "locust").chmod(0o755)
        step = json.loads(build.all("RUN")[-1])
        command = [sys.executable, *(str(root / word.lstrip("/")) for word in step[1:])]
        subprocess.run(command, check=True)
        for place in ("tmp", "proc", "dev", "stand-in", *(path.lstrip("/") for path in _LIBRARIES)):
            (root / place).mkdir(parents=True, exist_ok=True)
        (root / sys.base_prefix.lstrip("/")).mkdir(parents=True, exist_ok=True)
        return cls(root, final)

    def remove(self) -> None:
        shutil.rmtree(self.root)

    def start(
        self,
        argv: Sequence[str],
        results: Path,
        *,
        env: dict[str, str] | None = None,
        capabilities: Sequence[str] = (),
        new_privileges: bool = False,
    ) -> subprocess.Popen[str]:
        """A program in the image, with `results` as its volume; in this machine's network."""
        workdir = self.final.value("WORKDIR")
        packages = next(path for path in sys.path if path.endswith("site-packages"))
        spec = {
            "root": str(self.root),
            "mounts": [
                *((path, path, "ro") for path in _LIBRARIES if Path(path).exists()),
                (sys.base_prefix, sys.base_prefix, "ro"),
                (packages, "/stand-in", "ro"),
                ("/proc", "/proc", "rw"),
                ("/dev", "/dev", "rw"),
                (str(results), f"{workdir}/results", "rw"),
            ],
            "tmpfs": ["/tmp"],
            "user": int(self.final.value("USER").split(":")[0]),
            "workdir": workdir,
            "env": self.final.env | (env or {}),
            "argv": list(argv),
            "capabilities": list(capabilities),
            "new_privileges": new_privileges,
        }
        return subprocess.Popen(
            ["unshare", "--mount", sys.executable, jail.__file__, json.dumps(spec)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"PATH": os.environ["PATH"]},
        )

    def run(self, argv: Sequence[str], results: Path, **options: object) -> subprocess.CompletedProcess[str]:
        process = self.start(argv, results, **options)  # type: ignore[arg-type]
        out, err = process.communicate(timeout=90)
        return subprocess.CompletedProcess(list(argv), process.returncode, out, err)


def _copy(context: Context, source: str, destination: Path, into: bool) -> None:
    base = ROOT / source
    for relative in context.files(source):
        below = (ROOT / relative).relative_to(base) if base.is_dir() else Path(base.name if into else "")
        target = destination / below if str(below) != "." else destination
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / relative, target)
