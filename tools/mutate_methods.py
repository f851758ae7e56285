"""Show that the tests notice a wrong equation: apply small errors to the methods, one at a time, and run their tests.

    python tools/mutate_methods.py            # all errors, a table of caught and not caught; exit 1 if one was missed
    python tools/mutate_methods.py lwf wa     # only these methods

Each error replaces a piece of source text (a sign, a term, a temperature) in a temporary copy of the package. The
tests must pass in the copy before the first error.
"""

from __future__ import annotations

import compileall
import multiprocessing
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

import holdfast.report.page  # noqa: F401  imports PyTorch and the rest once, before the processes fork

ROOT = Path(__file__).resolve().parent.parent
METHODS = Path("src/holdfast/methods")
TESTS = {  # method: (test files, chosen by a word in the test's name); others: their own tests in test_rivals_today.py
    "replay": ("tests/test_recipe.py tests/test_training.py", "not resum"),
    "ewc": ("tests/test_penalties.py tests/test_importance.py", "not resum"),
    "si": ("tests/test_penalties.py", "not resum"),
    "mas": ("tests/test_penalties.py tests/test_importance.py", "not resum"),
    "gem": ("tests/test_gem.py", "not resum"),
    "agem": ("tests/test_gem.py", "agem"),
}
NAMES = {"er-ace": "er_ace", "der++": "der_holds"}  # as the tests spell them, where that differs

ERRORS: dict[str, list[tuple[str, str, str, str]]] = {  # method: (what, file, text, wrong text)
    "replay": [
        ("balanced softmax divides by the counts", "distillation.py", "counts.clamp(min=absent).log()",
         "-counts.clamp(min=absent).log()"),
        ("sign of the distillation", "replay.py", "return loss + self.options.weight *",
         "return loss - self.options.weight *"),
        ("weight of the distillation is missing", "replay.py", "self.options.weight * distance", "distance"),
        ("untaught samples are distilled", "distillation.py",
         "((1 - F.cosine_similarity(embedded, before)) * taught)", "(1 - F.cosine_similarity(embedded, before))"),
        ("contrast against the own class", "distillation.py", "near.masked_fill(same, -torch.inf)", "near"),
        ("contrast without its sharpness", "distillation.py", "near = SHARPNESS * ", "near = "),
        ("contrast in the other direction", "distillation.py", "-torch.inf), dim=1).diagonal()",
         "-torch.inf), dim=0).diagonal()"),
    ],
    "ewc": [
        ("sign of the penalty", "penalty.py", "away, 2 * self.strength)", "away, -2 * self.strength)"),
        ("the penalty is halved", "penalty.py", "away, 2 * self.strength)", "away, self.strength)"),
        ("absolute instead of squared gradients", "ewc.py", "torch.square", "torch.abs"),
        ("the least likely class", "ewc.py", "p.argmax(1)", "p.argmin(1)"),
        ("gradient of p instead of log p", "ewc.py", "F.one_hot(self.outcome(p, slots), p.shape[1]) - p", "p"),
        ("sum over samples", "importance.py", "total / max(count, 1) for total in totals.values()",
         "total for total in totals.values()"),
        ("importances do not add up", "ewc.py", "list(torch._foreach_add(self.importances, new))", "new"),
        ("the anchor stays", "ewc.py", "anchor += share * (latest - anchor)", "pass"),
    ],
    "si": [
        ("sign of the path", "si.py", "torch._foreach_sub_(before, self.parameters)",
         "torch._foreach_sub_(before, self.parameters); torch._foreach_neg_(before)"),
        ("no damping", "si.py", "DAMPING = 0.1", "DAMPING = 1e-6"),
        ("step not squared", "si.py", "torch._foreach_mul(total, total)", "torch._foreach_abs(total)"),
        ("gradient with the penalty", "si.py", "[g.clone() for g in gradients]", "gradients"),
        ("one path for all tasks", "si.py", "self.paths = [torch", "self.paths = self.paths or [torch"),
    ],
    "mas": [
        ("squared instead of absolute gradients", "mas.py", "torch.abs", "torch.square"),
        ("sum instead of mean over the outputs", "mas.py", "2 * logits / logits.shape[1]", "2 * logits"),
        ("outputs not squared", "mas.py", "2 * logits / logits.shape[1]",
         "torch.ones_like(logits) / logits.shape[1]"),
    ],
    "gem": [
        ("sign of the dual", "gem.py", "-along / scale", "along / scale"),
        ("turned away from old tasks", "gem.py", "g += torch.from_numpy(v)", "g -= torch.from_numpy(v)"),
        ("margin ignored", "gem.py", "np.full(len(gram), float(margin))", "np.zeros(len(gram))"),
        ("only if all tasks are violated", "gem.py", "(along < 0).any()", "(along < 0).all()"),
        ("old gradients summed over the memory", "gem.py", "self.backward(loss / total)", "self.backward(loss)"),
    ],
    "agem": [
        ("sign of the projection", "agem.py", "g -= torch.where", "g += torch.where"),
        ("projects in the wrong case", "agem.py", "along < 0", "along > 0"),
        ("not divided by the length", "agem.py", "along / (reference @ reference)", "along"),
    ],
    "er-ace": [
        ("new samples compete with all classes", "er_ace.py", ".masked_fill(absent, -torch.inf)", ""),
        ("no loss on the memory", "er_ace.py", "loss = loss + head.loss(features[new:], slots[new:])", "pass"),
        ("the mask is inverted", "er_ace.py", "masked_fill(absent,", "masked_fill(~absent,"),
    ],
    "der": [
        ("sign of the distance", "der.py", "loss = loss + self.options.alpha *", "loss = loss - self.options.alpha *"),
        ("alpha is missing", "der.py", "self.options.alpha * distillation", "distillation"),
        ("cross-entropy on the memory too", "der.py", "head.loss(features[:new], slots[:new])",
         "head.loss(features, slots)"),
        ("absolute instead of squared distance", "distillation.py",
         "(logits - torch.where(known, remembered, logits.detach())).square()",
         "(logits - torch.where(known, remembered, logits.detach())).abs()"),
    ],
    "der++": [
        ("beta is missing", "der.py", "self.options.beta * head.loss", "head.loss"),
        ("alpha and beta exchanged", "der.py", "self.options.alpha * distillation",
         "getattr(self.options, 'beta', self.options.alpha) * distillation"),
        ("one draw for both terms", "der.py", "head.loss(features[end:], slots[end:])",
         "head.loss(features[new:], slots[new:])"),
    ],
    "lwf": [
        ("sign of the distillation", "distillation.py", "return -(wanted.exp() * answers)",
         "return (wanted.exp() * answers)"),
        ("no temperature in the answers", "lwf.py", "log_answers(head, embedded, old, temperature), wanted",
         "log_answers(head, embedded, old), wanted"),
        ("temperature multiplies", "distillation.py", "head.outputs(embedded, slots) / temperature",
         "head.outputs(embedded, slots) * temperature"),
        ("lambda is missing", "lwf.py", "(self.options.old_weight or 0.0) * distance", "distance"),
        ("cross-entropy over all classes", "lwf.py", "head, new = self.learner.head, self.new_slots()",
         "head, new = self.learner.head, self.learner.head.seen"),
    ],
    "icarl": [
        ("no distillation", "icarl.py", "wanted[:, torch.searchsorted(head.seen, old)] = q", "pass"),
        ("softmax instead of sigmoid", "icarl.py", ".sigmoid()", ".softmax(1)"),
        ("farthest mean", "icarl.py", ".argmin(1)]", ".argmax(1)]"),
        ("means not normalised", "icarl.py",
         "self.means = F.normalize(sums.index_add_(0, row, F.normalize(embedded, dim=1)), dim=1)",
         "self.means = sums.index_add_(0, row, F.normalize(embedded, dim=1))"),
        ("the head answers", "icarl.py", "if self.means is None or", "if True or"),
    ],
    "lucir": [
        ("sign of the constraint", "lucir.py", "loss = loss + weight *", "loss = loss - weight *"),
        ("lambda does not adapt", "lucir.py", " * math.sqrt(len(self.before.head.seen) / len(fresh))", ""),
        ("lambda adapts the other way", "lucir.py", "len(self.before.head.seen) / len(fresh)",
         "len(fresh) / len(self.before.head.seen)"),
        ("no margin ranking", "lucir.py", "return loss + self.ranking(embedded[new:], slots[new:], fresh) if",
         "return loss if"),
        ("margin's sign", "lucir.py", "self.options.ranking_margin - own", "-self.options.ranking_margin - own"),
        ("ranked against old classes", "lucir.py", "torch.searchsorted(seen, fresh)]", "torch.arange(2)]"),
        ("eta in the cosines", "lucir.py", "outputs / head.scale if", "outputs if"),
    ],
    "il2m": [
        ("ratio inverted", "il2m.py", "self.first / self.now", "self.now / self.first"),
        ("confidence is missing", "il2m.py", " * self.confidence[-1] / self.confidence", ""),
        ("confidence inverted", "il2m.py", "self.confidence[-1] / self.confidence",
         "self.confidence / self.confidence[-1]"),
        ("always rectified", "il2m.py", "torch.where(new_is_best, scores * self.factors(), scores)",
         "(scores * self.factors())"),
        ("new classes rectified too", "il2m.py",
         "torch.where(self.fresh, mine, self.means(exemplars, self.memory.slots[held]))",
         "self.means(exemplars, self.memory.slots[held])"),
        ("old classes measured again", "il2m.py", "torch.cat([self.first, mine[self.fresh]])",
         "torch.cat([self.now[~self.fresh], mine[self.fresh]])"),
    ],
    "wa": [
        ("weights exchanged", "wa.py", "(1 - share) * loss + share * distance",
         "share * loss + (1 - share) * distance"),
        ("gamma inverted", "wa.py", "lengths[old].mean() / lengths[new].mean()",
         "lengths[new].mean() / lengths[old].mean()"),
        ("old rows aligned", "wa.py", "rows[new] *=", "rows[old] *="),
        ("temperature of 1", "wa.py", "old, temperature = self.before.head.seen, self.options.temperature",
         "old, temperature = self.before.head.seen, 1.0"),
    ],
    "ncm": [
        ("sign of the offset", "ncm.py", "-means.square()", "means.square()"),
        ("no half", "ncm.py", ".sum(1) / 2", ".sum(1)"),
        ("samples count in every epoch", "accumulating.py", "if self.left > 0:", "if True:"),
    ],
    "slda": [
        ("no shrinkage", "slda.py", "covariance.diagonal().add_(epsilon)", "covariance.diagonal().add_(1e-9)"),
        ("covariance not scaled", "slda.py", "(1 - epsilon) * self.sums.within", "self.sums.within"),
        ("scatter not divided", "slda.py", "self.sums.within / self.sums.n", "self.sums.within"),
        ("sign of the offset", "slda.py", "-(weights * means)", "(weights * means)"),
    ],
    "ranpac": [
        ("no ReLU", "ranpac.py", "(x @ self.matrix).relu()", "(x @ self.matrix)"),
        ("centred moments", "ranpac.py", "sums.within + sums.means.T @ sums.sums", "sums.within"),
        ("penalty not chosen", "ranpac.py", "choose_penalty(sums, sums.dim).penalty", "1e6"),
        ("penalty ignored", "ranpac.py", "add_diagonal(gram, ridge)", "add_diagonal(gram, 1e-3)"),
        ("means instead of sums", "ranpac.py", "torch.cholesky_solve(sums.sums.T", "torch.cholesky_solve(sums.means.T"),
    ],
}


def caught(folder: Path, method: str, file: str, text: str, wrong: str) -> bool:
    """Apply one error in the copy, run the method's tests, and restore the file; return True if a test failed."""
    path = folder / METHODS / file
    right = path.read_text()
    if right.count(text) != 1:
        sys.exit(f"{file} has {right.count(text)} times {text!r}; the error must change one place. Update this script.")
    path.write_text(right.replace(text, wrong))
    failed = fails(folder, method)
    path.write_text(right)
    return failed


def fails(folder: Path, method: str) -> bool:
    """Run the method's tests in the copy; return True if one failed."""
    own = f"test_{NAMES.get(method, method)} and not every_method and not bytes"
    files, chosen = TESTS.get(method, ("tests/test_rivals_today.py", own))
    words = ["-q", "-x", "-p", "no:cacheprovider", *files.split(), "-k", chosen]
    process = multiprocessing.get_context("fork").Process(target=run_tests, args=(folder, words))
    process.start()
    process.join()
    if process.exitcode not in (0, 1):
        sys.exit(f"The tests of {method} did not run: pytest {' '.join(words)} ended with {process.exitcode}.")
    return process.exitcode == 1


def run_tests(folder: Path, words: list[str]) -> None:
    """Run pytest on the copy, in a process that has imported the libraries but nothing of holdfast."""
    for name in [each for each in sys.modules if each.split(".")[0] == "holdfast"]:
        del sys.modules[name]
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what pytest prints is not shown
    os.chdir(folder)
    sys.path[:0] = [str(folder / "src"), str(folder / "tests")]
    sys.dont_write_bytecode = True
    sys.exit(int(pytest.main(words)))


def main() -> None:
    wanted = sys.argv[1:] or list(ERRORS)
    if unknown := [name for name in wanted if name not in ERRORS]:
        sys.exit(f"No errors are known for {', '.join(unknown)}; choose from {', '.join(ERRORS)}.")
    missed = count = 0
    with tempfile.TemporaryDirectory() as place:
        for part in ("src", "tests"):
            shutil.copytree(ROOT / part, Path(place) / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", place)
        compileall.compile_dir(Path(place) / "src", quiet=1)
        shutil.rmtree(Path(place) / METHODS / "__pycache__")  # the errors go here
        for method in wanted:
            if fails(Path(place), method):
                sys.exit(f"The tests of {method} fail without an error too: mend them first, or they show nothing.")
            for what, *change in ERRORS[method]:
                found = caught(Path(place), method, *change)
                missed, count = missed + (not found), count + 1
                print(f"{method:8} {what:42} {'caught' if found else 'NOT CAUGHT'}", flush=True)
    print(f"{count - missed} of {count} caught")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
