"""What a Gaussian imputer may be asked for, at the limits, and what it does where it is not asked to search."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from calmrl import GaussianImputer
from calmrl._support.arguments import seed_of
from calmrl.arrays import check
from calmrl.errors import InputError
from calmrl.latent.choose import Trial, check_arguments, decide, fixed_prior
from calmrl.latent.em import Settings, fit_settings
from calmrl.latent.held_out import coverage, hold_out, normal_reach, nothing_to_hide
from calmrl.latent.rows import check_links, check_size, open_source
from calmrl.latent.whitening import Whitening, principal_axes
from tests.support.latent_data import from_model

RIGHT = {
    "latent_dim": [1], "n_components": [1], "max_iter": [1], "batch_size": [1], "prior": [0, 5.5], "shrinkage": [0.0],
    "whitening": [0, 1], "step_size": [1, 0.01], "tol": [0], "criterion": ["retrieval"],
}  # fmt: skip
INF = float("inf")
PAIRS = torch.ones(3, 2, dtype=torch.bool)  # enough to hold something out
WRONG = [
    ({"latent_dim": 0}, r"latent_dim must be a whole number >= 1, or auto; got 0"),
    ({"latent_dim": True}, "latent_dim must be a whole number >= 1, or auto; got True"),
    ({"max_iter": "auto"}, "max_iter must be a whole number >= 1; got 'auto'"),
    ({"batch_size": 1.5}, "batch_size must be a whole number >= 1; got 1.5"),
    ({"batch_size": 0}, "batch_size must be a whole number >= 1; got 0"),
    ({"prior": -0.1}, "prior must be a number of rows >= 0, or 'auto'; got -0.1"),
    ({"prior": INF}, "prior must be a number of rows"),
    ({"shrinkage": "none"}, "shrinkage must be a number of rows >= 0, or 'auto'; got 'none'"),
    ({"whitening": -0.1}, "whitening must be a number from 0 to 1, or 'auto'; got -0.1"),
    ({"whitening": 1.1}, "whitening must be a number from 0 to 1"),
    ({"whitening": True}, "whitening must be a number from 0 to 1"),
    ({"whitening": "much"}, "whitening must be a number from 0 to 1"),
    ({"whitening": 0.5, "solver": "stepwise"}, "whitening needs solver='em'; got solver='stepwise' with whitening=0.5"),
    ({"step_size": 0}, r"step_size must be 'decay' or a number in \(0, 1\]; got 0"),
    ({"step_size": 1.1}, "step_size must be 'decay'"),
    ({"step_size": "fast"}, "step_size must be 'decay'"),
    ({"tol": -1e-9}, "tol must be >= 0; got -1e-09"),
    ({"tol": float("nan")}, "tol must be"),
    ({"n_components": 1.5}, "n_components must be a whole number"),
    ({"m_step": "both"}, "m_step must be one of"),
    ({"solver": "adam"}, "solver must be one of"),
    ({"criterion": "retrieval", "n_components": 2}, "criterion='retrieval' needs one shared space"),
    ({"solver": "stepwise", "n_components": "auto"}, "solver='stepwise' fits one component; use solver='em'"),
    ({"noise": "diag"}, "noise must be one of 'isotropic', 'diagonal', 'auto'; got 'diag'; did you mean 'diagonal'"),
]


def test_arguments_at_their_limits():
    for name, values in RIGHT.items():
        for value in values:
            check_arguments(GaussianImputer(**{"latent_dim": 2, name: value}).get_params())
    check_arguments(GaussianImputer(2, whitening=0, solver="stepwise").get_params())
    check_arguments(GaussianImputer(2, whitening="auto", solver="gradient").get_params())


@pytest.mark.parametrize(("arguments", "said"), WRONG, ids=lambda value: str(value) if isinstance(value, dict) else "")
def test_arguments_beyond_their_limits(arguments, said):
    with pytest.raises(InputError, match=said):
        check_arguments(GaussianImputer(**{"latent_dim": 2, **arguments}).get_params())


def rows_with(counts, n):
    """A source whose modalities are there in the first `counts` rows."""
    z = {f"m{j}": np.random.default_rng(j).normal(size=(n, 2)) for j in range(len(counts))}
    present = np.stack([np.arange(n) < count for count in counts], axis=1)
    present[:, 0] |= ~present.any(1)
    return open_source(z, present)


@pytest.mark.parametrize(("count", "n", "said"), [(9, 10, "in 9 of 10 rows only"), (10, 11, None), (8, 9, None)])
def test_few_rows_are_said(count, n, said):
    source = rows_with((n, count), n)
    if said:
        with pytest.warns(UserWarning, match=said):
            check_links(source)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_links(source)


def test_links_go_through_others():
    present = np.zeros((40, 4), bool)
    present[:10, :2], present[10:20, 1:3], present[20:30, 2:], present[30:, 0] = True, True, True, True
    z = {f"m{j}": np.ones((40, 1)) for j in range(4)}
    check_links(open_source(z, present))
    present[10:20, 1] = False
    with pytest.raises(InputError, match="no row links m2, m3 with m0, m1, not even through a third modality"):
        check_links(open_source(z, present))


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e30), (torch.float64, 1e280)])
def test_sizes_that_can_be_squared(dtype, limit):
    def source(variance):
        parts = {"mean": [torch.zeros(2).double()], "variance": [torch.tensor([1.0, variance], dtype=torch.float64)]}
        return SimpleNamespace(names=("a",), dtype=dtype, **parts)

    check_size(source(limit))
    more = ", or pass float64$" if dtype == torch.float32 else "by a constant$"
    with pytest.raises(InputError, match=rf"z\['a'\] has a column with mean square 1.01e\+\d+, too large .*{more}"):
        check_size(source(1.01 * limit))
    far = source(0.6 * limit)
    far.mean = [torch.tensor([0.0, (0.6 * limit) ** 0.5], dtype=torch.float64)]
    with pytest.raises(InputError, match=r"mean square 1\.2e\+"):
        check_size(far)
    with pytest.raises(InputError, match="mean square nan"):
        check_size(source(float("nan")))


def test_seeds():
    assert seed_of(0) == 0
    assert seed_of(np.int64(7)) == 7
    drawn = seed_of(np.random.RandomState(3))
    assert drawn == np.random.RandomState(3).randint(2**31 - 1)
    assert isinstance(seed_of(None), int)


def test_settings_where_nothing_is_searched():
    source = SimpleNamespace(names=("a", "b"))

    def settled(**options):
        settings, trials, *scales = decide(GaussianImputer(**{"latent_dim": 3, **options}).get_params(), source, 0)
        assert trials == []
        assert scales == [[1.0, 1.0], [1.0, 1.0]]
        return settings

    assert settled() == Settings(3)
    assert settled(prior=5, noise="diagonal", shrinkage=4) == Settings(3, noise="diagonal", prior=5.0)
    assert settled(n_components=2) == Settings(3, 2, prior=100.0, component_prior=100.0)
    assert settled(n_components=2, prior=1, shrinkage=4) == Settings(3, 2, prior=1.0, component_prior=4.0)
    assert settled(whitening=0.5).whitening == 0.5
    assert settled(whitening="auto").whitening == 0.0
    assert fixed_prior({"prior": "auto", "n_components": 1}) == 0.0


@pytest.mark.parametrize(
    ("whitening", "solver", "searched"),
    [("auto", "em", "auto"), ("auto", "stepwise", 0.0), (0.5, "em", 0.5), (0, "gradient", 0)],
)
def test_what_is_searched(monkeypatch, capsys, whitening, solver, searched):
    given = {}

    def choose(z, present, args, seed, report, *more):
        given.update(args, seed=seed)
        report(Trial(Settings(3, whitening=0.5), 0.25))
        return "settings", [Trial(Settings(3), 0.25)], [2.0], [3.0]

    monkeypatch.setattr("calmrl.latent.choose.sample_rows", lambda source, seed: (source, PAIRS))
    monkeypatch.setattr("calmrl.latent.choose.choose", choose)
    for verbose in (False, True):
        arguments = GaussianImputer("auto", whitening=whitening, solver=solver, verbose=verbose, prior=4.0).get_params()
        made = decide(arguments, SimpleNamespace(torn=False), 6)
        assert made == ("settings", [Trial(Settings(3), 0.25)], [2.0], [3.0])
        said = capsys.readouterr().err
        assert ("tried 3 latents, 1 components, whitening 0.5: 0.2500\n" in said) == verbose
        assert ("held-out error" in said) == verbose
    assert given["whitening"] == searched
    assert (given["seed"], given["prior"], given["latent_dim"], given["n_components"]) == (6, 4.0, "auto", 1)


# ---- held-out blocks


@pytest.mark.parametrize(("n", "hidden"), [(3, 1), (5, 1), (50, 10)])
def test_a_tenth_is_hidden_and_one_at_least(n, hidden):
    z = {name: torch.randn(n, 2, generator=torch.Generator().manual_seed(0)).double() for name in "ab"}
    held = hold_out(z, torch.ones(n, 2, dtype=torch.bool), 0)
    assert int(held.hidden.sum()) == hidden


def test_too_little_to_hide():
    rng = np.random.default_rng(0)
    two = {name: rng.normal(size=(2, 40)) for name in "ab"}
    with pytest.warns(UserWarning, match=r"takes latent_dim=32, prior=300\.0: .* at least 3 rows; got 2; give values"):
        assert GaussianImputer().fit(two).settings_ == Settings(32, prior=300.0)
    with pytest.warns(UserWarning, match=r"takes latent_dim=5, n_components=1, noise='isotropic': no row has two"):
        alone = GaussianImputer("auto", "auto", "auto", prior=7.0).fit({"a": rng.normal(size=(30, 5))})
    assert alone.settings_ == Settings(5, prior=7.0)
    lone = torch.eye(2, dtype=torch.bool).repeat(4, 1)
    assert "no row has two modalities" in nothing_to_hide(lone)
    lone[0] = True
    assert nothing_to_hide(lone) == ""  # one block to spare: not more than that is hidden
    assert int(hold_out({name: torch.zeros(8, 2).double() for name in "ab"}, lone, 0).hidden.sum()) == 1


def test_error_and_scale_are_those_of_the_imputed_blocks():
    z, present = from_model(n=150, latents=2, noise=0.5)
    z, mask = {n: torch.tensor(a) for n, a in z.items()}, torch.tensor(present)
    held = hold_out(z, mask, seed=0)
    visible = mask & ~held.hidden
    model = GaussianImputer(2).fit(z, visible)
    params = model.parameters_.moved([-mean for mean in held.source.mean])
    guess, std = model.impute(z, visible, return_std=True)
    wrong, entries, scale = 0.0, 0, []
    for m, (name, values) in enumerate(z.items()):
        at = held.hidden[:, m]
        error = (guess[name] - values)[at]
        wrong += float(error.square().sum() / values[visible[:, m]].var(0, correction=0).mean())
        entries += error.numel()
        scale.append(float(np.quantile((error.abs() / std[name][at]).numpy(), 0.9)) / 1.6448536269514722)
    assert held.error(params) == pytest.approx(wrong / entries)
    assert held.scales(params)[0] == pytest.approx(scale)


@pytest.mark.parametrize(("rank", "beyond"), [(400, 0.0), (2, 0.01)])
def test_whitened_coordinates_have_the_same_error(rank, beyond):
    z, present = from_model(n=150, latents=2, noise=0.5)
    held = hold_out({n: torch.tensor(a) for n, a in z.items()}, torch.tensor(present), seed=0)
    whitening = Whitening(held.source, principal_axes(held.source, rank), 0.5)
    inside = held.inside(whitening)
    with torch.no_grad():
        params = fit_settings(whitening.inner, Settings(2, prior=10.0), seed=0, max_iter=5, tol=0.0).params
        back = whitening.back(params)
    assert inside.beyond >= beyond  # directions that were not kept cannot come back
    assert inside.error(params) == pytest.approx(held.error(back), rel=1e-9)
    assert inside.miss(params) == pytest.approx(held.miss(back), abs=1e-9)


def test_scale_where_nothing_was_hidden():
    z, mask = {n: torch.randn(9, 2).double() for n in "abc"}, torch.ones(9, 3, dtype=torch.bool)
    held = hold_out(z, mask, 0)
    held.hidden[:, 1] = False
    params = GaussianImputer(1, max_iter=2, tol=1.0).fit(z).parameters_
    assert held.scales(params)[0][1] == 1.0


def test_shares_inside_intervals():
    reach = normal_reach(0.5)
    assert reach == pytest.approx(0.6744897501960817)
    assert normal_reach(0.95) == pytest.approx(1.959963984540054)
    z = {"a": np.zeros((4, 1)), "b": np.zeros((4, 2))}
    guess = {"a": np.array([[0.9], [-1.1], [9.0], [9.0]]) * reach, "b": np.full((4, 2), 3.0)}
    std = {name: np.ones_like(values) for name, values in z.items()}
    hidden = torch.tensor([[True, False], [True, False], [False, True], [False, False]])
    found = coverage(check(z, np.ones((4, 2), bool)), hidden, guess, std, 0.5)
    assert found == {"all": 0.25, "a": 0.5, "b": 0.0}
    sure = {name: np.zeros_like(values) for name, values in z.items()}
    assert coverage(check(z, np.ones((4, 2), bool)), hidden, z, sure, 0.5)["all"] == 1  # right and sure of it
    with pytest.raises(InputError, match="nothing is hidden: hidden must mark blocks that are present"):
        coverage(check(z, np.ones((4, 2), bool)), hidden & False, guess, std, 0.5)
