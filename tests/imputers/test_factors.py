"""Factors of a simulated model whose latents and loadings are known."""

import numpy as np
import pytest

from calmrl.errors import InputError
from calmrl.imputers import GaussianImputer, latent_factors


@pytest.fixture(scope="module")
def case():
    """Three causes: the first in both modalities, the others in one each. A modality is missing here, an entry there."""
    rng = np.random.default_rng(0)
    causes = rng.normal(size=(400, 3))
    gene, drug = np.zeros((3, 12)), np.zeros((3, 6))
    gene[0, :4], gene[1, 4:8] = 2.0, 1.5
    drug[0, :3], drug[2, 3:] = 1.5, -1.0
    z = {
        "gene": causes @ gene + 0.3 * rng.normal(size=(400, 12)),
        "drug": causes @ drug + 0.3 * rng.normal(size=(400, 6)),
    }
    z["drug"][:80] = np.nan
    z["gene"][100:, 0][rng.random(300) < 0.3] = np.nan
    names = {"gene": [f"g{j}" for j in range(12)], "drug": [f"d{j}" for j in range(6)]}
    imputer = GaussianImputer(3, noise="diagonal").fit(z)
    return imputer, z, causes, names


def test_factors_are_the_causes_with_their_columns(case):
    imputer, z, causes, names = case
    factors = latent_factors(imputer, z, columns=names)
    fit = np.abs(np.corrcoef(factors.latents[80:].T, causes[80:].T)[:3, 3:])
    at = fit.argmax(axis=1)
    assert at[0] == 0  # the cause that both modalities share explains most
    assert sorted(at) == [0, 1, 2]
    assert (fit.max(axis=1) > 0.95).all()
    assert {name for name, _ in factors.top(0, "gene", 4)} == {"g0", "g1", "g2", "g3"}
    private = int(np.flatnonzero(at == 2)[0])
    assert {name for name, _ in factors.top(private, "drug", 3)} == {"d3", "d4", "d5"}
    assert factors.explained["gene"][private] < 0.02
    assert factors.explained["drug"][private] > 0.2
    for name in z:  # latents that load on different columns add up
        assert abs(factors.explained[name].sum() - factors.explained_by_all[name]) < 0.05
        assert factors.explained_by_all[name] > 0.8


def test_turning_leaves_what_the_model_says(case):
    imputer, z, _, _ = case
    plain, turned = (latent_factors(imputer, z, rotation=name) for name in ("none", "varimax"))
    for name in z:
        said = [part.latents @ part.loadings[name].T for part in (plain, turned)]
        np.testing.assert_allclose(*said, atol=1e-8)
    assert not np.allclose(np.abs(plain.latents), np.abs(turned.latents), atol=0.1)


WRONG = {
    "rotation": (
        lambda f, i, z: latent_factors(i, z, rotation="promax"),
        "rotation must be one of .varimax., .none.; got .promax.",
    ),
    "modality": (lambda f, i, z: f.top(0, "text"), "unknown modality 'text'; there are gene, drug"),
    "latent": (lambda f, i, z: f.top(3, "gene"), "latent must be a number from 0 to 2; got 3"),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors(name, case):
    imputer, z, _, _ = case
    ask, message = WRONG[name]
    with pytest.raises(InputError, match=message):
        ask(latent_factors(imputer, z), imputer, z)
