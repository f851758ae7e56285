"""The command line for people's own folders of images."""

import json
import signal
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from holdfast import files
from holdfast.cli.main import app
from holdfast.data import folders
from holdfast.errors import CannotWrite
from holdfast.estimator import IncrementalClassifier, versions
from holdfast.estimator.model_files import NAME
from holdfast.learning.learner import Learner

COLOURS = {"red": (200, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 200), "grey": (128, 128, 128)}
QUICK = ["--backbone", "lenet", "--slots", "6", "--memory", "60", "--epochs", "6", "--size", "8", "--threads", "1"]


def photograph(folder, names, count=14):
    """Noisy pictures of plain colours, of all sizes."""
    draw = np.random.RandomState(0)
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            size = (draw.randint(8, 20), draw.randint(8, 20))
            pixels = np.clip(np.array(COLOURS[name]) + draw.normal(scale=25, size=(*size, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


def holdfast(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def album(tmp_path_factory):
    return photograph(tmp_path_factory.mktemp("photos"), ["red", "green"])


@pytest.fixture(scope="module")
def model(album, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "m"
    done = holdfast("learn", album, "--model", folder, *QUICK)
    assert done.exit_code == 0, done.output
    return folder


def test_learning_a_folder_makes_a_model(model):
    clf = IncrementalClassifier.load(model)
    assert clf.classes_.tolist() == ["green", "red"] and clf.model_.learner.shape == (3, 8, 8)


def test_learning_says_when_the_memory_keeps_few_samples_of_each_class(album, model, tmp_path):
    words = [word for word in QUICK if word not in ("--memory", "60")]
    few, enough = (holdfast("learn", album, "--model", tmp_path / m, *words, "--memory", m) for m in ("39", "40"))
    assert "room for 19 samples of each class" in " ".join(few.output.split())
    assert "samples of each class" not in enough.output


def test_more_folders_are_added_and_known_ones_left_alone(album, model, tmp_path):
    mine = tmp_path / "m"
    mine.mkdir()
    (mine / NAME).write_bytes((model / NAME).read_bytes())
    photograph(tmp_path / "more", ["blue", "red"])
    done = holdfast("learn", tmp_path / "more", "--model", mine)
    assert done.exit_code == 0 and "the model knows them already" in done.output and "red" in done.output
    clf = IncrementalClassifier.load(mine)
    assert clf.classes_.tolist() == ["blue", "green", "red"] and clf.model_.history[-1]["classes"] == ["blue"]
    assert holdfast("learn", tmp_path / "more", "--model", mine).exit_code == 0
    assert IncrementalClassifier.load(mine).model_.taught == 2, "the same again changes nothing"
    assert holdfast("learn", tmp_path / "more", "--model", mine, "--again").exit_code == 0
    assert IncrementalClassifier.load(mine).model_.taught == 3
    lines = holdfast("predict", mine, album / "green", "--json").stdout.splitlines()
    found = [json.loads(line)["label"] for line in lines]
    assert found.count("green") > 10


def test_what_cannot_be_read_is_listed_and_not_fatal(tmp_path):
    photograph(tmp_path / "photos", ["red", "green"], count=4)
    (tmp_path / "photos" / "red" / "torn.jpg").write_bytes(b"\xff\xd8\xff\xe0 not much of a picture")
    whole = (tmp_path / "photos" / "green" / "0.png").read_bytes()
    (tmp_path / "photos" / "green" / "cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "photos" / "red" / "notes.txt").write_text("not an image, and not named like one")
    (tmp_path / "photos" / ".hidden").mkdir()
    done = holdfast("learn", tmp_path / "photos", "--model", tmp_path / "m", *QUICK)
    assert done.exit_code == 0, done.output
    text = " ".join(done.output.split())
    assert "torn.jpg" in text and "cut.png" in text and "notes.txt" not in text and "Learned 8 images in" in text


def test_predictions_are_a_table_or_lines_of_json(model, album, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"nothing")
    some = [album / "red" / "0.png", album / "green" / "1.png"]
    table = holdfast("predict", model, *some)
    assert table.exit_code == 0 and "red" in table.stdout and "%" in table.stdout
    done = holdfast("predict", model, *some, tmp_path / "bad.png", "--json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["sample"] for line in lines] == [str(path) for path in some]
    assert all(0 <= line["probability"] <= 1 and line["best"][0][0] == line["label"] for line in lines)
    assert "bad.png" in done.stderr


def test_predicting_takes_each_image_through_the_network_once(model, album, monkeypatch):
    seen, real = [], Learner.embed_frozen
    monkeypatch.setattr(Learner, "embed_frozen", lambda self, x: (seen.append(len(x)), real(self, x))[1])
    assert holdfast("predict", model, album / "red").exit_code == 0
    assert sum(seen) == 14


def test_novelty_is_shown_where_something_is_refused_by_it(album, tmp_path):
    shown = ["--held-back", "0.5", "--memory", "200", *[word for word in QUICK if word not in ("--memory", "60")]]
    assert holdfast("learn", album, "--model", tmp_path / "m", *shown).exit_code == 0
    assert len(IncrementalClassifier.load(tmp_path / "m").model_.held) == 14
    assert "(up to" not in holdfast("predict", tmp_path / "m", album / "red").stdout
    assert "(up to" in " ".join(holdfast("predict", tmp_path / "m", album / "red", "--reject", "0.1").stdout.split())


def test_answers_about_images_come_as_csv_too(model, album):
    lines = holdfast("predict", model, album / "red", "--csv").stdout.splitlines()
    assert lines[0] == "sample,label,probability,novelty" and len(lines) == 15


def test_a_corrupt_image_is_left_out_by_an_embedder_too(album, tmp_path, monkeypatch):
    """The embedder is a function in place of a network."""
    from holdfast import embedders
    from holdfast.embedders.own import Own

    def small(samples):
        return np.stack([np.asarray(Image.open(path).convert("RGB").resize((2, 2))).ravel() for path in samples])

    def opened(spec, **others):
        made = Own(small, device="cpu")
        made.takes = "images"
        return made

    monkeypatch.setattr("holdfast.estimator.embedding.open_embedder", opened)
    assert embedders  # imported before it is replaced
    (album / "red" / "torn.png").write_bytes(b"nothing")
    try:
        done = holdfast("learn", album, "--model", tmp_path / "m", "--embedder", "onnx:any.onnx", "--no-cache")
        assert done.exit_code == 0, done.output + str(done.exception)
        assert "torn.png" in done.output and "Learned 28 images" in " ".join(done.output.split())
    finally:
        (album / "red" / "torn.png").unlink()


@pytest.mark.parametrize("flag", [["--backbone", "lenett"], ["--head", "simplx"], ["--memory", "-1"]])
def test_wrong_flags_are_refused_before_anything_is_read(album, tmp_path, monkeypatch, flag):
    monkeypatch.setattr("holdfast.cli.teaching.read", lambda *a, **k: pytest.fail("images were read"))
    done = holdfast("learn", album, "--model", tmp_path / "m", *flag)
    assert done.exit_code != 0 and flag[1].lstrip("-") in str(done.exception)


def test_samples_of_another_kind_than_the_models_are_named(model, tmp_path):
    (tmp_path / "q.csv").write_text("question\nwhere is it\n")
    done = holdfast("predict", model, tmp_path / "q.csv", "--text", "question")
    assert "These are texts, but the model takes images." in str(done.exception)


def test_vectors_come_with_their_ids(model, album, tmp_path):
    out = tmp_path / "v.npy"
    done = holdfast("embed", model, album / "red", "-o", out, "--unit")
    assert done.exit_code == 0, done.output
    vectors, ids = np.load(out, allow_pickle=False), json.loads((tmp_path / "v.ids.json").read_text())
    assert vectors.shape == (14, 5) and len(ids) == 14 and np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    clf = IncrementalClassifier.load(model)
    assert np.allclose(vectors, clf.embed(ids, unit=True), atol=1e-6)


def test_few_updates_are_warned_of(album, tmp_path):
    done = holdfast("learn", album, "--model", tmp_path / "m", *QUICK)
    assert "Only 6 updates" in " ".join(done.stderr.split())
    more = photograph(tmp_path / "more", ["blue", "grey"])
    done = holdfast("learn", more, "--model", tmp_path / "m", "--epochs", "3")
    assert "3 epochs of 28 samples" in " ".join(done.stderr.split())


def interrupt_at(monkeypatch, call, number=signal.SIGINT):
    """Ctrl-C, or another signal, while the file of this call, the first is 0, is being read."""
    calls, real = iter(range(1000)), folders.inputs.as_picture

    def pressed(*given):
        if next(calls) == call:
            signal.raise_signal(number)
        return real(*given)

    monkeypatch.setattr(folders.inputs, "as_picture", pressed)
    return calls


def test_ctrl_c_while_files_are_read_is_seen_at_the_next_one_and_leaves_nothing_behind(album, tmp_path, monkeypatch):
    calls = interrupt_at(monkeypatch, 3)
    done = holdfast("learn", album, "--model", tmp_path / "deep" / "m", *QUICK)
    assert done.exit_code == 130 and next(calls) == 4, "no file was read after the fourth"
    assert "nothing was learned yet" in done.stderr and not (tmp_path / "deep").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_addition_leaves_the_model_as_it_was(number, album, model, tmp_path, monkeypatch):
    before = (model / NAME).read_bytes()
    interrupt_at(monkeypatch, 0, number)
    done = holdfast("learn", photograph(tmp_path, ["blue"], count=3), "--model", model)
    assert done.exit_code == 128 + number and "is unchanged" in " ".join(done.stderr.split())
    assert (model / NAME).read_bytes() == before


def test_half_a_model_that_a_killed_process_left_is_deleted_and_nothing_else(album, model, tmp_path):
    mine = tmp_path / "m"
    mine.mkdir()
    (mine / NAME).write_bytes((model / NAME).read_bytes())
    for name in (f".{NAME}.123.part", ".my.part", "notes.part"):
        (mine / name).write_bytes(b"half")
    assert holdfast("learn", album, "--model", mine).exit_code == 0
    assert {path.name for path in mine.iterdir()} - {".lock"} == {NAME, ".my.part", "notes.part"}


def test_a_first_learn_that_fails_leaves_no_folder(tmp_path):
    (tmp_path / "photos" / "red").mkdir(parents=True)
    (tmp_path / "photos" / "red" / "torn.png").write_bytes(b"nothing")
    done = holdfast("learn", tmp_path / "photos", "--model", tmp_path / "m")
    assert "nothing was learned" in str(done.exception) and not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    "flags, need", [([], 0), (["--backbone", "lenet"], 40), (["--backbone", "lenet", "--memory", "10"], 10)],
    ids=["solved", "replay", "replay with a small memory"],
)
def test_room_for_the_samples_that_replay_keeps_is_checked_before_training(flags, need, tmp_path, monkeypatch):
    for name, colour in (("red", (200, 0, 0)), ("green", (0, 200, 0))):
        (tmp_path / "album" / name).mkdir(parents=True)
        for row in range(20):
            Image.new("RGB", (16, 16), (*colour[:2], row)).save(tmp_path / "album" / name / f"{row}.png")
    free = versions.ROOM + need * 3 * 16 * 16 - 1
    monkeypatch.setattr(files.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    words = ["learn", tmp_path / "album", "--model", tmp_path / "m", *flags, *(["--epochs", "1"] if flags else [])]
    done = holdfast(*words)
    assert isinstance(done.exception, CannotWrite) and "Nothing was started" in str(done.exception)
    free += 1
    assert holdfast(*words).exit_code == 0


def test_a_model_in_use_needs_room_for_one_more_of_its_size(model, monkeypatch):
    size = (model / "model.safetensors").stat().st_size
    monkeypatch.setattr(versions, "ROOM", 0)
    for free, passes in ((size, True), (size - 1, False)):
        monkeypatch.setattr(files.shutil, "disk_usage", lambda path, free=free: SimpleNamespace(free=free))
        with nullcontext() if passes else pytest.raises(CannotWrite, match="Nothing was started"):
            versions.check_room(model)


def test_inspecting_shows_and_draws(model, tmp_path):
    done = holdfast("inspect", model, "--picture", tmp_path / "p.png")
    text = " ".join(done.stdout.split())
    assert done.exit_code == 0 and "2 classes, 4 of 6 slots left" in text and "green" in text
    rows = [line for line in done.stdout.splitlines() if line[:1] in "┃│┏└"]
    assert rows and all(row[-1] in "┃│┓┘" for row in rows), "80 columns cut the table"
    with Image.open(tmp_path / "p.png") as picture:
        assert picture.width > 500


@pytest.mark.parametrize(
    "words, message",
    [
        (["learn", "{tmp}/none", "--model", "{tmp}/m"], "There is no folder"),
        (["learn", "{tmp}", "--model", "{tmp}/m"], "no subfolders"),
        (["learn", "{album}", "--model", "{model}", "--slots", "9"], "cannot change"),
        (["predict", "{tmp}/nowhere", "{album}"], "no model in"),
        (["predict", "{model}", "{tmp}/none.png"], "no file or folder"),
        (["predict", "{model}", "{album}", "--reject", "7"], "reject is 7"),
    ],
)
def test_mistakes_are_named(album, model, tmp_path, words, message):
    (tmp_path / "x" / "m").mkdir(parents=True)  # the model's folder is no class
    done = holdfast(*[w.format(tmp=tmp_path / "x", album=album, model=model) for w in words])
    assert done.exit_code != 0 and message in str(done.exception)


def test_an_empty_class_folder_is_named_and_left_out(tmp_path):
    photograph(tmp_path / "photos", ["red", "blue"], count=2)
    (tmp_path / "photos" / "void").mkdir()
    with pytest.warns(UserWarning, match="no images in the folders void"):
        done = holdfast("learn", tmp_path / "photos", "--model", tmp_path / "m", "--epochs", "1")
    assert done.exit_code == 0, done.output


def test_small_images_are_learned_on_patch_features_and_the_command_says_so(album, tmp_path):
    done = holdfast("learn", album, "--model", tmp_path / "m")
    text = " ".join(done.output.split())
    assert done.exit_code == 0 and "learned on patch features" in text


@pytest.mark.parametrize(("timm", "said"), [(False, "pip install 'holdfast[timm]'"), (True, "embedded by timm:mobile")])
def test_photographs_take_a_pretrained_network_where_timm_is_installed(tmp_path, monkeypatch, timm, said, capsys):
    from holdfast.cli import samples

    Image.new("RGB", (200, 100)).save(tmp_path / "photo.png")
    monkeypatch.setattr(samples.importlib.util, "find_spec", lambda name: object() if timm else None)
    chosen = samples.photo_embedder([tmp_path / "photo.png"], offline=False)
    assert chosen == (samples.PHOTO if timm else None)
    assert said in " ".join(capsys.readouterr().err.split())
    assert samples.photo_embedder([tmp_path / "photo.png"], offline=True) is None
    better = "--embedder timm:NAME@FILE.safetensors" if timm else "pip install 'holdfast[timm]'"
    assert better in " ".join(capsys.readouterr().err.split())
