"""The walk over settings, with errors that are made up: what is tried, in which order, and what is kept."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from calmrl.latent import choose as size_search
from calmrl.latent.choose import Search, Trial, choose, sample_rows, smallest_of_the_best, table
from calmrl.latent.em import Settings
from calmrl.latent.rows import open_source


class Made:
    """Trials whose error is a function of the settings."""

    def __init__(self, error):
        self.error, self.bases = error, []

    def run(self, settings, base):
        self.bases.append(base)
        return self.error(settings), 7, f"model {settings.latent_dim}"


def search(error):
    told = []
    return Search(Made(error), told.append), told


def tried(made, name="latent_dim"):
    return [getattr(trial.settings, name) for trial in made.trials]


def test_a_trial_is_made_once_and_told():
    made, told = search(lambda s: 1.0)
    one = made.attempt(Settings(3))
    assert one.settings == Settings(3, iterations=7)
    assert made.attempt(Settings(3, iterations=2)) is one
    assert told == made.trials == [one]
    assert made.models == {one.settings: "model 3"}
    assert one.row()["error"] == 1.0
    assert one.row()["latent_dim"] == 3


def test_the_smallest_of_those_that_cannot_be_told_apart():
    def trial(error, latents, components=1):
        return Trial(Settings(latents, components), error)

    best = trial(1.0, 16)
    assert smallest_of_the_best([best, trial(1.005, 8), trial(1.0051, 4)]).settings.latent_dim == 8
    assert smallest_of_the_best([best, trial(1.0051, 8)]) is best
    assert smallest_of_the_best([trial(1.0, 2, 3), trial(1.004, 64, 1)]).settings.latent_dim == 64
    assert smallest_of_the_best([trial(1.004, 8), trial(1.001, 8)]).error == 1.001


@pytest.mark.parametrize(
    ("best", "order"),
    [
        (16, [16, 32, 8]),
        (64, [16, 32, 64, 128]),
        (128, [16, 32, 64, 128]),
        (4, [16, 32, 8, 4, 2]),
        (2, [16, 32, 8, 4, 2]),
    ],
)
def test_sizes_go_up_and_then_down(best, order):
    made, _ = search(lambda s: abs(np.log2(s.latent_dim / best)))
    lowest = made.walk("latent_dim", (2, 4, 8, 16, 32, 64, 128), Settings(16))
    assert tried(made) == order
    assert lowest.settings.latent_dim == best


def test_sizes_begin_at_the_nearest():
    made, _ = search(lambda s: 1.0)  # never better
    made.walk("latent_dim", (2, 4, 8), Settings(5))
    assert tried(made) == [4, 8, 2]
    made, _ = search(lambda s: 1.0)
    made.walk("latent_dim", (2,), Settings(5))
    assert tried(made) == [2]


def test_a_ladder_is_not_walked_down_after_its_last_value_helped():
    made, _ = search(lambda s: -s.prior)
    assert made.walk("prior", (0.0, 10.0, 300.0, 1000.0), Settings(4, prior=300.0)).settings.prior == 1000.0
    assert tried(made, "prior") == [300.0, 1000.0]


def test_one_setting_after_the_other_from_the_best():
    made, _ = search(lambda s: abs(s.prior - 10) + (s.noise == "diagonal"))
    made.attempt(Settings(4))
    made.along("noise", ("isotropic", "diagonal"))
    made.along("prior", (0.0, 10.0, 30.0))
    assert [(t.settings.noise, t.settings.prior) for t in made.trials] == [
        ("isotropic", 0.0),
        ("diagonal", 0.0),
        ("isotropic", 10.0),
        ("isotropic", 30.0),
    ]


def test_mixtures_start_from_the_best_single_component():
    made, _ = search(lambda s: 1.0 / s.n_components - 0.01 * s.component_prior)
    single = made.attempt(Settings(4))
    made.components((3, 10), (1.0, 2.0), single)
    found = [(t.settings.n_components, t.settings.component_prior, t.settings.base_iterations) for t in made.trials[1:]]
    assert found == [(3, 1.0, 7), (3, 2.0, 7), (10, 2.0, 7)]  # the better strength stays
    assert made.made.bases == [None, *["model 4"] * 3]
    made, _ = search(lambda s: 1.0)
    made.components((3, 10), (1.0, 2.0), made.attempt(Settings(4)))
    assert tried(made, "n_components") == [1, 3, 3]  # no more of what does not help


def test_what_a_search_before_has_tried_is_not_tried_again():
    made, told = search(lambda s: 1.0)
    made.attempt(Settings(3))
    further = Search(Made(lambda s: 2.0), told.append, ready=made.ready)
    assert further.attempt(Settings(3)).error == 1.0
    assert further.attempt(Settings(4)).error == 2.0
    assert [trial.settings.latent_dim for trial in told] == [3, 3, 4]  # told all the same
    assert further.made.bases == [None]


POWERS = (0.35, 0.5, 0.6, 0.75)


@pytest.mark.parametrize(
    ("error", "order"),
    [
        (lambda s: 1.101, [(256, 0.5)]),  # worse than the best by more than a tenth
        (lambda s: 1.1, [(256, 0.5), (256, 0.6), (256, 0.35), (400, 0.5)]),
        (lambda s: 1.0 + (s.whitening - 0.5) ** 2, [(256, 0.5), (256, 0.6), (256, 0.35), (400, 0.5)]),
        (lambda s: 1.0 - s.whitening, [(256, 0.5), (256, 0.6), (256, 0.75), (400, 0.75)]),
        (lambda s: 1.0 - s.whitening - s.latent_dim, [(256, 0.5), (256, 0.6), (256, 0.75), (400, 0.75), (500, 0.75)]),
        (lambda s: abs(s.whitening - 0.6), [(256, 0.5), (256, 0.6), (256, 0.75), (400, 0.6)]),
        (lambda s: s.whitening, [(256, 0.5), (256, 0.6), (256, 0.35), (400, 0.35)]),
    ],
)
def test_powers_of_whitening(error, order):
    made, _ = search(lambda s: error(s) if s.whitening else 1.0)
    made.attempt(Settings(8))
    made.whitened(Settings(8, whitening=0.5), (256, 400, 500), POWERS)
    assert [(t.settings.latent_dim, t.settings.whitening) for t in made.trials[1:]] == order


@pytest.fixture
def chosen(monkeypatch):
    """`choose` with made-up errors: (options) -> (settings, trials)."""

    def run(error=lambda s: 1.0, widths=(300, 300), rows=5000, holes=None, **options):
        held = SimpleNamespace(
            source=SimpleNamespace(widths=widths, rows=rows),
            views=None,
            holes=holes,
            scales=lambda params: ([params], [params + " in holes"]),
        )
        monkeypatch.setattr(size_search, "hold_out", lambda z, present, seed: held)
        monkeypatch.setattr(size_search, "Trials", lambda *_: Made(error))
        given = {"latent_dim": "auto", "n_components": 1, "noise": "isotropic", "prior": "auto", "shrinkage": "auto"}
        given |= {"whitening": 0.0, "criterion": "imputation", "max_iter": 10, **options}
        settings, trials, *scales = choose({}, None, given, 0, lambda trial: None)
        assert scales == [[f"model {settings.latent_dim}"], [f"model {settings.latent_dim} in holes"]]
        return settings, [trial.settings for trial in trials]

    return run


def distinct(trials, name):
    return sorted({getattr(one, name) for one in trials})


def test_rows_with_holes_are_not_whitened(chosen):
    for holes in (None, "some"):
        _, trials = chosen(lambda s: 1.0 if s.whitening else 2.0, whitening="auto", holes=holes)
        assert any(one.whitening for one in trials) == (holes is None)


def test_what_auto_means(chosen):
    settings, trials = chosen(
        lambda s: 1.0 + 1e-5 * s.prior - 1e-5 * s.n_components, n_components="auto", noise="auto", whitening="auto"
    )
    assert trials[0] == Settings(16, prior=300.0, iterations=7)
    assert distinct(trials, "noise") == ["diagonal", "isotropic"]
    assert distinct(trials, "prior") == [0.0, 10.0, 100.0, 300.0, 1000.0]
    assert distinct(trials, "n_components") == [1, 3, 10, 30]
    assert distinct(trials, "component_prior") == [0.0, 10.0, 100.0]
    assert distinct(trials, "whitening") == [0.0, 0.35, 0.5, 0.6]
    assert max(distinct(trials, "latent_dim")) == 400
    assert settings.n_components == 1


def test_what_was_given_is_kept(chosen):
    _, trials = chosen(latent_dim=5, prior=7, noise="diagonal", whitening=0.5)
    assert trials == [Settings(5, noise="diagonal", prior=7.0, whitening=0.5, iterations=7)]
    settings, trials = chosen(latent_dim=5, prior=7, n_components=4, shrinkage=2)
    assert settings == Settings(5, 4, prior=7.0, component_prior=2.0, base_iterations=7, iterations=7)
    assert trials == [settings]  # the single component is where it starts, not a candidate
    assert distinct(chosen(n_components="auto", whitening=0.0)[1], "whitening") == [0.0]
    assert distinct(chosen(latent_dim=5, whitening="auto")[1], "whitening") == [0.0]
    assert distinct(chosen(n_components=3, whitening="auto")[1], "whitening") == [0.0]


@pytest.mark.parametrize(
    ("widths", "rows", "largest", "first"),
    [
        ((5, 4), 1000, 8, 9),
        ((5, 3), 1000, 8, 8),
        ((1,), 1000, 1, 1),
        ((500,), 9, 8, 8),
        ((500,), 2, 2, 2),
        ((500,), 257, 256, 16),
        ((500,), 256, 128, 16),
        ((400,), 9999, 400, 16),
        ((399,), 9999, 256, 16),
    ],
)
def test_no_more_latents_than_columns_and_rows_allow(chosen, widths, rows, largest, first):
    """It starts at 16, or at the nearest size on the ladder to the largest there can be."""
    _, trials = chosen(lambda s: 1 / s.latent_dim, widths, rows, whitening="auto")
    assert max(distinct(trials, "latent_dim")) == largest
    assert abs(trials[0].latent_dim - first) <= 1


@pytest.mark.parametrize(
    ("latents", "rows", "counts"), [(64, 5000, [1, 3, 10, 30]), (128, 5000, [1, 3, 10]), (4, 20, [1, 3, 10])]
)
def test_no_more_components_than_rows_and_time_allow(chosen, latents, rows, counts):
    _, trials = chosen(lambda s: 1 / s.n_components, latent_dim=latents, rows=rows, n_components="auto")
    assert distinct(trials, "n_components") == counts


def test_the_best_size_is_looked_for_again_after_the_prior(chosen):
    """Small at the first prior, large at the one that is best in the end."""
    settings, _ = chosen(
        lambda s: 1.0 + 0.001 * abs(s.prior - 10) + 0.0005 * abs(s.latent_dim - (64 if s.prior <= 10 else 8))
    )
    assert (settings.latent_dim, settings.prior) == (64, 10.0)


def test_the_search_as_a_table():
    best = Trial(Settings(8, 1, prior=300.0, iterations=12), 0.5)
    head, first, second = table([best, Trial(Settings(16, 3, "diagonal", 10.0, 100.0), 0.61)]).splitlines()
    assert head.split() == [
        "latents",
        "components",
        "noise",
        "prior",
        "shrinkage",
        "power",
        "steps",
        "held-out",
        "error",
    ]
    assert first.split() == ["8", "1", "isotropic", "300", "0", "0", "12", "0.5000", "*"]
    assert second.split() == ["16", "3", "diagonal", "10", "100", "0", "0", "0.6100"]


@pytest.mark.parametrize(("most", "expected"), [(100, 40), (40, 40), (20, 20), (1, 2)])
def test_rows_of_the_search(monkeypatch, most, expected):
    monkeypatch.setattr(size_search, "SEARCH_ROWS", most)
    rows = np.arange(40.0)[:, None]
    chunks = [({"a": rows[i : i + 20], "b": rows[i : i + 20] + 100}, np.ones((20, 2), bool)) for i in (0, 20)]
    chunks[1] = ({"a": rows[20:]}, np.ones((20, 1), bool))
    z, present = sample_rows(open_source(chunks, None), 0)
    assert len(present) == expected  # one of every chunk at least
    found = z["a"][:, 0].tolist()
    assert found == sorted(found)
    assert len(set(found)) == expected
    assert torch.equal(z["b"][present[:, 1]], z["a"][present[:, 1]] + 100)
    assert z["b"][~present[:, 1]].isnan().all()
    assert present[:, 1].tolist() == [row < 20 for row in found]
