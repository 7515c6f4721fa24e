"""What an aligner promises: any subset, any order, any kind of array, saved and loaded, rows on disk."""

import copy
import json

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from calmrl import Aligner, GaussianImputer
from calmrl.aligner import space as fitting
from calmrl.aligner.storage import aligner_card, from_state, to_state
from calmrl.baselines import MCCA, load_baseline
from calmrl.data.features.feature_set import FeatureSet
from calmrl.errors import InputError
from calmrl.hub import LIMITS
from calmrl.metrics.retrieve import csls
from tests.aligner.aligner_data import FAST, KERNEL, linear_rows

pytestmark = pytest.mark.filterwarnings("ignore:modality .* is observed in")


@pytest.fixture(scope="module")
def data():
    return linear_rows()


@pytest.mark.parametrize("make", [lambda: Aligner(**FAST), MCCA])
def test_holes_are_completed_within_their_modality(make, data, tmp_path):
    z, present = data
    random = np.random.default_rng(3)
    torn = {name: np.where(random.random(values.shape) < 0.1, np.nan, values) for name, values in z.items()}
    model = make().fit(torn, present)
    alone = {  # a latent model of each modality, which sees nothing of the others
        name: GaussianImputer("auto", "auto", "auto").fit({name: torn[name][present[:, j]]}) for j, name in enumerate(z)
    }
    whole = {name: values.copy() for name, values in torn.items()}
    for j, (name, values) in enumerate(whole.items()):
        values[present[:, j]] = alone[name].transform({name: torn[name][present[:, j]]})[name]
    vectors = model.embed(torn, present)
    assert_allclose(vectors, make().fit(whole, present).embed(whole, present), atol=1e-12)
    model.save(tmp_path / "saved")
    again = Aligner.load(tmp_path / "saved") if isinstance(model, Aligner) else load_baseline(tmp_path / "saved")
    assert_allclose(again.embed(torn, present), vectors, atol=1e-12)


def test_holes_in_chunks_are_those_in_memory(data):
    z, present = data
    torn = {
        name: np.where(np.random.default_rng(3).random(values.shape) < 0.1, np.nan, values)
        for name, values in z.items()
    }
    chunks = [
        ({name: values[at] for name, values in torn.items()}, present[at])
        for at in np.array_split(np.arange(len(present)), 3)
    ]
    assert_allclose(
        Aligner(**FAST).fit(chunks).embed(torn, present),
        Aligner(**FAST).fit(torn, present).embed(torn, present),
        atol=1e-8,
    )


def test_the_closed_form_is_the_latent_model_on_whitened_principal_components(data):
    z, present = data
    aligner = Aligner(**FAST).fit(z, present)
    features = {}
    for j, (name, values) in enumerate(z.items()):
        seen = values[present[:, j]]
        centre = seen.mean(0)
        _, spread, directions = np.linalg.svd(seen - centre, full_matrices=False)
        scores = (values - centre) @ directions.T / (spread**2 / len(seen)) ** 0.25
        # the start of EM is drawn for given signs of the directions, so they must be those of the aligner
        largest = np.abs(directions).argmax(1)
        features[name] = scores * np.sign(directions[np.arange(len(directions)), largest])
        features[name] /= np.sqrt((features[name][present[:, j]] ** 2).mean())
    with pytest.warns(match="EM used all"):
        model = GaussianImputer(6, prior=30.0, max_iter=5, tol=0.0).fit(features, present)
    want = model.embed(features, present)
    assert_allclose(aligner.embed(z, present), want / np.linalg.norm(want, axis=1, keepdims=True), atol=1e-6)


@pytest.mark.parametrize("arguments", [FAST, KERNEL], ids=["linear", "kernel"])
def test_the_order_of_modalities_does_not_matter(data, arguments):
    z, present = data
    back = dict(reversed(z.items()))
    one, other = Aligner(**arguments).fit(z, present), Aligner(**arguments).fit(back, present[:, ::-1])
    assert_array_equal(one.embed(z, present), other.embed(z, present))
    assert_array_equal(one.embed(back, present[:, ::-1]), one.embed(z, present))
    assert one.expected_ == other.expected_
    assert list(one.expected_) != list(other.expected_)  # listed in the order of the data


def test_values_in_missing_rows_are_never_read(data):
    z, present = data
    junk = {name: np.where(present[:, [j]], a, 1e30) for j, (name, a) in enumerate(z.items())}
    one, other = Aligner(**KERNEL).fit(z), Aligner(**KERNEL).fit(junk, present)
    assert_array_equal(one.embed(z), other.embed(junk, present))


def test_unit_vectors_from_any_subset(data):
    z, present = data
    aligner = Aligner(**KERNEL).fit(z, present)
    whole = aligner.embed(z, present)
    assert whole.shape == (240, 6)
    assert_allclose(np.linalg.norm(whole, axis=1), 1)
    alone = present[:, 1] & (present.sum(1) == 1)
    assert_allclose(aligner.embed({"m1": z["m1"][alone]}), whole[alone], atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_torch_in_torch_out(data, dtype):
    z, present = data
    tensors = {name: torch.from_numpy(a).to(dtype) for name, a in z.items()}
    arrays = {name: t.numpy() for name, t in tensors.items()}
    one = Aligner(**KERNEL).fit(tensors, torch.from_numpy(present))
    other = Aligner(**KERNEL).fit(arrays, present)
    embedded = one.embed(tensors)
    assert embedded.dtype == dtype
    assert_array_equal(embedded.numpy(), other.embed(arrays))
    assert isinstance(one.similarity({"m0": tensors["m0"][:3]}, {"m1": tensors["m1"][:3]}), torch.Tensor)


def test_no_rows_give_no_vectors(data):
    aligner = Aligner(**FAST).fit(*data)
    assert aligner.embed({"m0": np.zeros((0, 12))}).shape == (0, 6)


def test_saved_and_loaded(data, tmp_path):
    z, present = data
    aligner = Aligner(**{**KERNEL, "whitening": "auto"}).fit(z, present)
    aligner.save(tmp_path / "aligner")
    again = Aligner.load(tmp_path / "aligner")
    assert_allclose(again.embed(z, present), aligner.embed(z, present), atol=1e-14)
    assert again.expected_ == aligner.expected_
    assert again.choice_ == aligner.choice_
    assert again.get_params() == aligner.get_params()
    assert sorted(p.name for p in (tmp_path / "aligner").iterdir()) == ["aligner.json", "aligner.safetensors"]
    with pytest.raises(InputError, match="exists already"):
        aligner.save(tmp_path / "aligner")
    aligner.save(tmp_path / "aligner", overwrite=True)
    meta = json.loads((tmp_path / "aligner" / "aligner.json").read_text())
    del meta["order"]
    meta["version"] = 1  # which had no checksums
    (tmp_path / "aligner" / "aligner.json").write_text(json.dumps(meta))
    with pytest.raises(InputError, match=r"is incomplete \('order'\); save it again"):
        Aligner.load(tmp_path / "aligner")


def test_constructor_does_nothing_and_clones():
    aligner = Aligner(features="kernel", folds=5)
    assert clone(aligner).get_params() == aligner.get_params()
    assert Aligner(features="nonsense").features == "nonsense"


@pytest.mark.parametrize("way", ["memmap", "chunks", "sums", "rows again"])
def test_rows_on_disk_give_the_same(data, way, tmp_path, monkeypatch):
    z, present = data
    want = Aligner(**KERNEL).fit(z, present).embed(z, present)
    source = z, present
    if way == "memmap":
        mapped = {}
        for name, values in z.items():
            np.save(tmp_path / f"{name}.npy", values)
            mapped[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
        source = mapped, present
    elif way == "chunks":
        source = ([({n: a[i : i + 50] for n, a in z.items()}, present[i : i + 50]) for i in range(0, 240, 50)], None)
    elif way == "rows again":
        monkeypatch.setattr(fitting, "SUM_BYTES", 0)
        source = ([({n: a[i : i + 50] for n, a in z.items()}, present[i : i + 50]) for i in range(0, 240, 50)], None)
    else:
        monkeypatch.setattr(fitting, "ROWS_PER_FEATURE", 0)
    assert_allclose(Aligner(**KERNEL).fit(*source).embed(z, present), want, atol=1e-7)


def test_a_feature_set_is_fitted_as_it_is(data):
    z, present = data
    whole = FeatureSet({n: np.nan_to_num(a) for n, a in z.items()}, present)
    assert_allclose(Aligner(**FAST).fit(whole).embed(z), Aligner(**FAST).fit(z, present).embed(z), atol=1e-12)


def test_similarity_is_cosine_and_csls_on_request(data):
    z, present = data
    aligner = Aligner(**FAST).fit(z, present)
    both = present[:, 0] & present[:, 1]
    q, g = {"m0": z["m0"][both][:20]}, {"m1": z["m1"][both][:30]}
    plain = aligner.similarity(q, g)
    assert_allclose(plain, aligner.embed(q) @ aligner.embed(g).T)
    from tests.reference.aligner import csls

    assert_allclose(aligner.similarity(q, g, hubs="csls", k=3), csls(plain, 3))


@pytest.fixture(scope="module")
def fitted():
    z, _ = linear_rows(n=90, rate=0.0)
    return Aligner(**FAST).fit(z, relevant=np.arange(90) // 2), z


PARTS = ["landmarks", "shape", "offset", "projection", "variance", "weight", "bias", "information"]


@pytest.mark.parametrize("part", PARTS)
def test_tensors_that_do_not_fit_each_other(fitted, part):
    state = to_state(fitted[0])
    key = f"{'space' if part in PARTS[5:] else 'lift'}.m1.{part}"
    tensor = state["tensors"][key]
    for wrong in (torch.zeros((*tensor.shape[:-1], tensor.shape[-1] + 1)), tensor.long()):
        if part == "projection" and wrong.is_floating_point():
            wrong = torch.zeros((tensor.shape[0] + 1, tensor.shape[1]))
        broken = {"meta": state["meta"], "tensors": {**state["tensors"], key: wrong}}
        with pytest.raises(InputError, match=rf"my file is incomplete \(.*\b{part} of m1 is .*\); save it again"):
            from_state(broken, "my file")


def test_files_of_earlier_versions(fitted):
    aligner, z = fitted
    state = to_state(aligner)
    del state["meta"]["encoders"]
    state["tensors"] = {key: tensor for key, tensor in state["tensors"].items() if not key.startswith("group.")}
    again = from_state(state)
    assert again.encoders_ is None
    assert_array_equal(again.embed(z), aligner.embed(z))
    assert again.evidence_["m0->m1"].own.group.tolist() == list(range(90))


def test_what_a_fitted_one_answers(fitted):
    aligner, z = fitted
    with pytest.raises(InputError, match="a whole number from 2 on; got"):
        aligner.expected(True)
    with pytest.raises(InputError, match="a whole number from 2 on; got"):
        aligner.expected(5.0)
    assert aligner.expected(2)["m0->m1"]["n"] == aligner.expected(np.int64(2))["m0->m1"]["n"] == 2
    first, rest = {"m0": z["m0"][:20]}, {"m1": z["m1"][:20]}
    assert_allclose(aligner.similarity(first, rest, hubs="csls"), csls(aligner.similarity(first, rest), 10))
    with pytest.raises(InputError, match="queries and gallery mix NumPy arrays and torch tensors; pass one kind"):
        aligner.similarity({"m0": torch.from_numpy(z["m0"])}, rest)
    assert aligner.get_feature_names_out().tolist() == [f"aligner{j}" for j in range(6)]
    assert repr(aligner).endswith(", fitted: m0, m1, m2 -> 6 latents, linear features")
    assert "fitted" not in repr(Aligner())


def test_what_the_card_says(fitted):
    aligner, _ = fitted
    known = copy.copy(aligner)
    known.encoders_ = {"encoders": {"m1": {"name": "clip"}, "other": {"name": "x"}}}
    card = aligner_card(known)
    assert card.encoders == {"m1": "clip"}
    assert card.widths == {"m0": 12, "m1": 10, "m2": 8}
    assert "candidates" not in card.choice
    assert card.choice["latent_dim"] == 6
    expected = aligner.expected_["m0->m1"]
    first = card.quality[0]
    assert first == {"direction": "m0->m1", **{key: round(value, 1) for key, value in expected.items()}}
    assert card.title == "Aligner: m0, m1, m2 in one space of 6 dimensions"
    assert len(card.quality) == 6
    assert len(card.limits) == len(LIMITS)
    del known.__dict__["evidence_"]
    known.evidence_ = {key: value for key, value in aligner.evidence_.items() if key != "m0->m1"}
    assert aligner_card(known).limits[-1].startswith("No training row shows m0->m1;")
