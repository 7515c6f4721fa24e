"""`mteb.evaluate` runs models of calmrl, on pools whose documents have different modalities, without a network."""

from __future__ import annotations

import io
import wave

import numpy as np
import pytest
from scipy.io import wavfile

from calmrl import Aligner
from calmrl.data import FeatureSet
from calmrl.data.features.directory import meta_table
from calmrl.datasets import load_dataset
from calmrl.encoders import EncoderSet
from calmrl.encoders.base import MEDIA
from calmrl.errors import InputError
from tests.support.colour_world import RATE, TONES, colour, register, settings
from tests.support.later import Later

mteb = Later("mteb")
interop = Later("calmrl.interop")  # imports mteb
FIXED = {"features": "linear", "unit_rows": True, "whitening": 0.5, "latent_dim": 64, "prior": 100.0, "refine": "never"}
NAMES = {"text": "read", "image": "see", "sound": "hear"}


def scores(model, task) -> dict[str, float]:
    result = mteb.evaluate(model, task, cache=None, show_progress_bar=False, co2_tracker=False)
    return result.task_results[0].scores[task.metadata.eval_splits[0]][0]


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """A request would be an error, not a download."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def colours(monkeypatch):
    register(monkeypatch)
    return EncoderSet(NAMES, dtype="float32")


def chord(rgb: np.ndarray) -> np.ndarray:
    seconds = np.arange(RATE) / RATE
    return sum(level / 1024 * np.sin(2 * np.pi * tone * seconds) for level, tone in zip(rgb, TONES, strict=True))


def wav(rgb: np.ndarray) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(RATE)
        sound.writeframes((chord(rgb) * 32767).astype("<i2").tobytes())
    return file.getvalue()


def picture(rgb: np.ndarray):
    return pytest.importorskip("PIL.Image").fromarray(np.full((8, 8, 3), rgb, np.uint8))


def words(rgb: np.ndarray) -> str:
    return f"the colour {' '.join(map(str, rgb))}"


@pytest.fixture
def colour_aligner(colours):
    many = [colour(number) for number in range(60)]
    return settings().fit(*colours.encode([{"text": words(c), "image": picture(c), "sound": wav(c)} for c in many]))


def test_texts_pictures_and_sounds_of_mteb_reach_the_encoders(colours, colour_aligner):
    """The vectors are those of `embed` on the features of the same items; an empty text and None are missing."""
    one, two, three = (colour(number) for number in (100, 101, 102))
    batch = {
        "id": ["1", "2", "3"],
        "text": [words(one), "", ""],
        "image": [None, picture(two), picture(three)],
        "audio": [None, None, {"array": chord(three), "sampling_rate": RATE}],
    }
    model = interop.MTEBModel(colour_aligner, colours)
    assert model.columns == {"image": "image", "text": "text", "audio": "sound"}
    cells = [{"text": words(one)}, {"image": picture(two)}, {"image": picture(three), "sound": wav(three)}]
    expected = colour_aligner.embed(*colours.encode(cells))
    np.testing.assert_allclose(model.encode([batch]), expected, atol=1e-4)
    assert isinstance(model, mteb.EncoderProtocol)
    assert model.mteb_model_meta.modalities == ["image", "text", "audio"]
    np.testing.assert_allclose(model.similarity_pairwise(expected, expected), 1, atol=1e-5)


def test_a_mixed_pool_of_emoji_by_features():
    data = load_dataset("emoji")
    task = interop.mixed_pool_task(data)
    train = data.select("train")
    z = {name: train.z[name] for name in ("image", "text", "french")}
    aligner = Aligner(**FIXED, random_state=0).fit(z, train.present[:, [data.names.index(name) for name in z]])
    result = scores(interop.MTEBFeatures(aligner, data), task)
    corpus = task.dataset["default"]["test"]["corpus"]
    assert set(corpus["has"]) == {"image", "french", "image+french"}
    assert all((row["image"] is None) == ("image" not in row["has"]) for row in corpus)
    assert all((row["text"] == "") == ("french" not in row["has"]) for row in corpus)
    assert result["hit_rate_at_1"] > 0.3  # by chance 0.003
    assert result["hit_at_1_image"] > 0.03
    assert result["main_score"] == result["ndcg_at_10"]
    shares = [corpus["has"].count(form) / len(corpus) for form in ("image", "french", "image+french")]
    forms = [result[f"hit_at_1_{form}"] for form in ("image", "french", "image+french")]
    assert np.dot(shares, forms) == pytest.approx(result["hit_rate_at_1"], abs=1e-4)


class Random:
    """A model that knows nothing."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def embed(self, z, present):
        return self.rng.normal(size=(len(present), 16))


def test_a_model_that_knows_nothing_finds_nothing():
    data = load_dataset("stamps")
    task = interop.mixed_pool_task(data, [("image",), ("speech",), ("image", "speech")])
    assert task.metadata.category is None  # MTEB has no name for pictures and sounds by text
    assert scores(interop.MTEBFeatures(Random(), data), task)["recall_at_10"] < 0.2  # of 153; by chance 0.065


def test_an_encoder_set_alone_needs_one_width(colours):
    model = interop.MTEBModel(EncoderSet({"text": "read"}, dtype="float32"))
    assert model.encode([{"text": ["the colour 1 2 3", "the colour 4 5 6"]}]).shape == (2, 16)
    with pytest.raises(InputError, match=r"widths 16, 24.*Aligner"):
        interop.MTEBModel(colours).encode([{"text": ["the colour 1 2 3", ""], "image": [None, picture(colour(1))]}])


@pytest.mark.parametrize(
    ("forms", "said"),
    [
        ([("image", "text")], "find itself"),
        ([("picture",)], 'no modality "picture"'),
        ([], "at least one tuple"),
        ([("image",), ()], "none of them empty"),
    ],
)
def test_forms_that_cannot_be(forms, said):
    with pytest.raises(InputError, match=said):
        interop.mixed_pool_task(load_dataset("emoji"), forms)


def test_a_pool_without_any_row():
    nothing = FeatureSet({"image": np.eye(2), "text": np.full((2, 1), np.nan)}, meta=meta_table(2, split=["train"] * 2))
    with pytest.raises(InputError, match='no row of split "train" has text and all modalities of the forms'):
        interop.mixed_pool_task(nothing, [("image",)], split="train")


@pytest.mark.parametrize(
    ("encoders", "columns", "found"),
    [
        (NAMES, {"audio": "text"}, 'no encoder reads audio as "text"'),
        (NAMES, {"sound": "sound"}, r'columns are read from image, .*; got "sound"'),
        (NAMES, {"text": "caption"}, 'no encoder reads text as "caption"; there are text'),
        (NAMES, {"text": "text"}, {"text": "text"}),
        ({"title": "read", "caption": "read"}, None, "say which one"),
        ({"title": "read", "text": "read"}, None, {"text": "text"}),
        ({"title": "read"}, None, {"text": "title"}),
    ],
)
def test_which_encoder_reads_a_column(colours, encoders, columns, found):
    def make():
        return interop.MTEBModel(EncoderSet(encoders), columns=columns)

    if isinstance(found, str):
        with pytest.raises(InputError, match=found):
            make()
    else:
        assert make().columns == found


def test_documents_that_cannot_be_embedded(colours, colour_aligner):
    files = interop.MTEBModel(colour_aligner, colours)
    features = interop.MTEBFeatures(colour_aligner, load_dataset("emoji"))
    for model, batch, said in (
        (files, {"text": [""], "image": [None]}, "none of image, text"),
        (files, {"video": [None]}, "the model reads image, text, audio"),
        (features, {"id": ["x"], "has": ["text"]}, 'no item "x"'),
        (features, {"id": ["x"], "text": ["x"]}, "use MTEBModel"),
    ):
        with pytest.raises(InputError, match=said):
            model.encode([batch])


def test_cosines():
    model = interop.MTEBFeatures(Random(), load_dataset("emoji"))
    one, two = np.array([[3.0, 4.0], [0.1, 0.0]]), np.array([[0.0, 0.2], [5.0, 0.0]])
    np.testing.assert_allclose(model.similarity(one, two), [[0.8, 0.6], [0.0, 1.0]], atol=1e-6)
    np.testing.assert_allclose(model.similarity_pairwise(one, two), [0.8, 1.0], atol=1e-6)
    assert np.abs(model.similarity(np.zeros((1, 2)), two)).max() == 0  # no direction is like none
    assert (model.name, model.revision) == ("calmrl/features", "1")
    assert model.modalities == list(MEDIA)


def test_what_a_model_gets_of_features_by_name():
    got = {}
    data = load_dataset("emoji")
    model = interop.MTEBFeatures(Random(), data)
    model.model.embed = lambda z, present: got.update(z=z, present=present) or np.ones((2, 3))
    model.encode([{"id": ["dog-face", "cat-face"], "has": ["text", "image+text"]}])
    assert list(got["z"]) == ["image", "text"]
    assert got["present"].tolist() == [[False, True], [True, True]]
    np.testing.assert_array_equal(got["z"]["text"][0], data.z["text"][data.ids.tolist().index("dog-face")])


class Given(EncoderSet):
    """Encoders that give these vectors, and keep what they were given."""

    def __init__(self, z, present) -> None:
        super().__init__({"text": "minilm", "audio": "yamnet", "image": "mobilenet_v2"})
        self.z, self.present, self.cells = z, np.array(present, dtype=bool), []

    def encode(self, cells, **how):
        self.cells += cells
        return self.z, self.present


def test_the_vectors_of_encoders_alone_are_averaged():
    z = {
        "text": np.array([[3.0, 4.0], [2.0, 0.0]]),
        "audio": np.array([[0.0, 0.5], [9.0, 9.0]]),
        "image": np.ones((2, 7)),
    }
    model = interop.MTEBModel(Given(z, [[1, 1, 0], [1, 0, 0]]))
    found = model.encode([{"text": ["a", "b"]}])
    np.testing.assert_allclose(found, [[0.1**0.5, 0.9**0.5], [1.0, 0.0]], atol=1e-6)  # (0.6, 0.8) + (0, 1)


def test_sounds_keep_their_channels_and_empty_texts_are_missing():
    samples = np.array([[0.0, 0.5, -0.5], [0.25, 0.0, 0.0]], dtype=np.float32)
    encoders = Given({"text": np.ones((3, 2))}, [[1]] * 3)
    sounds = [{"array": samples, "sampling_rate": 8000}, {"array": samples[0], "sampling_rate": 8000}, None]
    interop.MTEBModel(encoders).encode([{"audio": sounds, "text": ["x", "", "x"], "image": ["", None, ""]}])
    assert [cell["text"] for cell in encoders.cells] == ["x", None, "x"]
    assert [cell["image"] for cell in encoders.cells] == ["", None, ""]
    both, one, none = (cell["audio"] for cell in encoders.cells)
    for content, shape in ((both, (3, 2)), (one, (3,))):
        rate, back = wavfile.read(io.BytesIO(content))
        assert (rate, back.shape) == (8000, shape)
    assert none is None


def test_a_pool_by_name_and_seed():
    data = load_dataset("emoji")
    task, named = (
        interop.mixed_pool_task(data),
        interop.mixed_pool_task(data, name="Mine", query="image", forms=[("drawing",), ("french",)]),
    )
    corpus = task.dataset["default"]["test"]["corpus"]
    drawn = np.random.default_rng(0).integers(3, size=len(corpus))
    assert list(corpus["has"]) == [("image", "french", "image+french")[form] for form in drawn]
    assert list(interop.mixed_pool_task(data, seed=1).dataset["default"]["test"]["corpus"]["has"]) != list(
        corpus["has"]
    )
    assert task.metadata.category == "t2it"
    assert named.metadata.name == "Mine"
    assert named.metadata.category is None
    assert named.metadata.modalities == ["image", "text"]
    assert named.data_loaded
    assert all(value == {item: 1} for item, value in named.dataset["default"]["test"]["relevant_docs"].items())
