"""Try a built wheel as a stranger would: a fresh environment, an empty folder, nothing of the repository in reach.

    python tools/try_wheel.py dist             # --release: fail if the metadata has no address of the project

It installs the wheel with the constraints of this repository, runs the demo and `tools/smoke.py` there, and prints the
wheel's size, the time of an import, and the packages that came with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
VARIABLES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "HOLDFAST_DATA")  # would reach back into the repository


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "dist")
    wheels, sdists = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    if len(wheels) != 1 or len(sdists) != 1:
        sys.exit(f"{folder} has {len(wheels)} wheels and {len(sdists)} sdists; one of each is wanted: run make dist.")
    for path in (*wheels, *sdists):
        print(f"{path.name}: {path.stat().st_size / 1024:.0f} kB", flush=True)
    if not has_addresses(wheels[0]):
        print("The wheel names no address of the project: fill in [project.urls] before the first tag.", flush=True)
        if "--release" in sys.argv:
            sys.exit(1)
    with tempfile.TemporaryDirectory(prefix="holdfast-wheel-") as place:
        try_out(wheels[0].resolve(), Path(place))
    print(f"{wheels[0].name} works from an empty folder.")


def has_addresses(wheel: Path) -> bool:
    """Return True if the wheel's metadata has at least one Project-URL."""
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (each for each in packed.namelist() if each.endswith(".dist-info/METADATA"))
        return "\nProject-URL: " in packed.read(name).decode().partition("\n\n")[0]


def try_out(wheel: Path, place: Path) -> None:
    """Install the wheel into an environment in `place` and use it there."""
    venv.create(place / "env", with_pip=True)
    binaries, empty = place / "env" / "bin", place / "empty"
    empty.mkdir()
    shutil.copy(ROOT / "tools" / "smoke.py", place / "smoke.py")
    environment = {key: value for key, value in os.environ.items() if key not in VARIABLES}

    def run(*command: object) -> None:
        subprocess.run([str(word) for word in command], cwd=empty, env=environment, check=True)

    run(binaries / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
        "-c", ROOT / "constraints.txt", wheel)
    run(binaries / "python", "-m", "pip", "check", "--disable-pip-version-check")
    run(binaries / "holdfast", "--version")
    run(binaries / "holdfast", "run", "split-digits", "--out", "demo")
    run(binaries / "holdfast", "report", "demo", "--out", "page")
    run(binaries / "python", place / "smoke.py")
    run(binaries / "python", "-m", "pip", "list", "--disable-pip-version-check")


if __name__ == "__main__":
    main()
