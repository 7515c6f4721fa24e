"""Models of sentence-transformers as encoders, and the text side of an aligner as such a model; with the real library."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from calmrl import Aligner
from calmrl.encoders import EncoderSet, load_encoder
from calmrl.errors import InputError
from tests.support.later import Later
from tests.support.tiny_encoders import save_tokenizer

library = Later("sentence_transformers")
transformers = Later("transformers")
aligners = Later("calmrl.aligner")  # imports sentence-transformers

TEXTS = ["a red boat", "two dogs", "the sea at night", "a tree", "snow", "cats and dogs"]


@pytest.fixture(scope="module")
def model_path(tmp_path_factory) -> str:
    """A random model with a dense layer, which `hf:` does not read, and two prompts."""
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

    folder = tmp_path_factory.mktemp("st")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=80, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    transformers.BertModel(config).save_pretrained(folder / "bert")
    save_tokenizer(folder / "bert")
    words = Transformer(str(folder / "bert"))
    dense = Dense(16, 12, activation_function=torch.nn.Tanh())
    model = library.SentenceTransformer(
        modules=[words, Pooling(16, "mean"), dense, Normalize()], prompts={"query": "ask ", "other": ""}
    )
    model.save(str(folder / "model"))
    return str(folder / "model")


def test_vectors_are_those_of_the_library(model_path):
    encoder = load_encoder(f"st:{model_path}")
    expected = library.SentenceTransformer(model_path, device="cpu").encode(TEXTS)
    assert (encoder.kind, encoder.width) == ("text", 12)
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-5)


def test_a_vector_does_not_depend_on_other_texts(model_path):
    encoder = load_encoder(f"st:{model_path}")
    assert np.array_equal(encoder.encode(TEXTS)[2:3], encoder.encode(TEXTS[2:3]))


def test_a_prompt_is_put_before_the_text(model_path):
    asked, plain = load_encoder(f"st:{model_path}#query"), load_encoder(f"st:{model_path}")
    np.testing.assert_allclose(asked.encode(["boat"]), plain.encode(["ask boat"]), atol=1e-6)
    assert np.abs(asked.encode(["boat"]) - plain.encode(["boat"])).max() > 1e-3


@pytest.mark.parametrize(
    ("name", "message"), [("st:", "needs a local path"), ("st:/nowhere", "cannot be loaded"), ("{}#task", "#query")]
)
def test_a_name_that_means_nothing_is_refused(model_path, name, message):
    with pytest.raises(InputError, match=message):
        load_encoder(name.format(f"st:{model_path}"))


def test_a_set_of_encoders_takes_it(model_path):
    encoders = EncoderSet({"text": f"st:{model_path}"})
    z, present = encoders.encode([{"text": text} for text in TEXTS[:3]] + [{"text": None}])
    assert present[:, 0].tolist() == [True, True, True, False]
    assert z["text"].shape == (4, 12)
    assert encoders.kind("text") == "text"


@pytest.mark.parametrize("unit_rows", [True, False])
def test_the_text_side_of_an_aligner_loads_without_calmrl(model_path, tmp_path, unit_rows):
    model = library.SentenceTransformer(model_path, device="cpu")
    texts = [f"{first} {second}" for first in TEXTS for second in TEXTS]
    vectors = model.encode(texts)
    rng = np.random.default_rng(0)
    pictures = vectors @ rng.normal(size=(12, 9)) + 0.1 * rng.normal(size=(len(texts), 9))
    aligner = Aligner(features="linear", unit_rows=unit_rows, latent_dim=6, refine="never", folds=2)
    aligner.fit({"image": pictures.astype(np.float32), "text": vectors})
    aligners.to_sentence_transformer(aligner, model).save(str(tmp_path / "shared"))

    again = library.SentenceTransformer(str(tmp_path / "shared"), device="cpu")
    assert {type(module).__module__.split(".")[0] for module in again} == {"sentence_transformers"}
    np.testing.assert_allclose(again.encode(texts), aligner.embed({"text": vectors}), atol=1e-4)
    assert again.prompts["query"] == "ask "
    assert len(model) == 4  # the model that was passed is as it was


def test_what_has_no_text_side_is_refused(model_path):
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(60, 3))
    z = {"image": shared @ rng.normal(size=(3, 9)), "text": shared @ rng.normal(size=(3, 12))}
    kernel = Aligner(features="kernel", latent_dim=4, refine="never", folds=2, landmarks=30).fit(z)
    with pytest.raises(InputError, match="kernel features"):
        aligners.to_sentence_transformer(kernel, model_path)
    linear = Aligner(features="linear", latent_dim=3, refine="never", folds=2).fit({**z, "words": z["text"][:, :5]})
    with pytest.raises(InputError, match='no modality "title"'):
        aligners.to_sentence_transformer(linear, model_path, "title")
    with pytest.raises(InputError, match="12 numbers per text"):
        aligners.to_sentence_transformer(linear, model_path, "words")


@pytest.fixture
def asked(monkeypatch):
    """What a model of a stand-in for the library is asked: texts and prompt."""
    calls = []

    class Model:
        prompts: dict = {}  # noqa: RUF012

        def encode(self, texts, **how):
            assert not how["show_progress_bar"]
            calls.append((list(texts), how["prompt_name"]))
            return np.ones((len(texts), 6))

    def made(name, device):
        model = Model()
        model.prompts = {} if name == "plain" else {"query": "q ", "other": "o "}
        return model

    monkeypatch.setattr("calmrl.encoders.hf.need", lambda *what: SimpleNamespace(SentenceTransformer=made))
    return calls


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("st:plain#query", 'the model "plain" has no prompt "query"; it has none'),
        ("st:name#ask", 'has no prompt "ask"; it has #query, #other'),
        ("st:#query", 'an encoder "st:" needs a local path or a name after the colon'),
    ],
)
def test_prompts_that_a_model_has_are_listed(asked, name, reason):
    with pytest.raises(InputError, match=reason):
        load_encoder(name)


@pytest.mark.parametrize(
    ("name", "device", "calls"),
    [
        ("st:name#query", "cpu", [(["a"], "query"), (["b"], "query")]),
        ("st:name", "elsewhere", [(["a", "b"], None)]),  # one by one on a CPU only
    ],
)
def test_how_texts_are_given_to_the_library(asked, name, device, calls):
    encoder = load_encoder(name, device)
    asked.clear()
    assert encoder.encode(["a", "b"]).dtype == np.float32
    assert asked == calls
