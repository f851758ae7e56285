"""Use an installed holdfast from outside its repository: package data, metadata, the estimator, a saved model.

    python tools/smoke.py
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from importlib.metadata import entry_points, metadata, version
from importlib.resources import files
from pathlib import Path

FILES = ("py.typed", "paper/paper_tables.json", "report/templates/report.html", "serving/page.html")


def main() -> None:
    import holdfast

    package = files("holdfast")
    assert "site-packages" in str(package), f"holdfast comes from {package}, not from an installed wheel"
    assert version("holdfast") == holdfast.__version__
    classifiers = metadata("holdfast").get_all("Classifier") or []
    assert {"3.10", "3.11", "3.12", "3.13"} <= {line.rsplit(" ", 1)[-1] for line in classifiers}
    (command,) = entry_points(group="console_scripts", name="holdfast")
    assert command.value == "holdfast.cli.main:main"
    for name in FILES:
        assert package.joinpath(name).is_file(), f"the wheel lacks {name}"
    assert json.loads(package.joinpath("paper/paper_tables.json").read_text())
    check_model()
    print(f"import holdfast: {seconds('import holdfast'):.2f} s; with the estimator: "
          f"{seconds('from holdfast import IncrementalClassifier'):.2f} s")


def check_model() -> None:
    """Teach two batches of classes, save, load, and predict the same."""
    from sklearn.datasets import load_digits

    from holdfast import IncrementalClassifier

    X, y = load_digits(return_X_y=True)
    train, test = slice(0, 1200), slice(1200, None)
    model = IncrementalClassifier(slots=20)
    for digits in (range(5), range(5, 10)):
        rows = [at for at in range(1200) if y[at] in digits]
        model.partial_fit(X[rows], y[rows])
    right = model.score(X[test], y[test])
    assert right > 0.85, f"only {right:.1%} of the digits are right"
    model.save("model")
    again = IncrementalClassifier.load("model")
    assert (again.predict(X[train]) == model.predict(X[train])).all()
    assert Path("model/model.safetensors").exists()
    print(f"ten digits in two batches: {right:.1%} right")


def seconds(statement: str) -> float:
    """Return the time of a statement in a new process."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
