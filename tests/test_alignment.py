"""Calibrated alignment: what is imputed, where gradients go, what is updated, what is saved."""

from __future__ import annotations

import doctest
import io
import time
from copy import deepcopy
from functools import cache

import pytest
import torch
from safetensors.torch import load, save
from torch import nn
from torch.nn.functional import normalize

import calmrl.alignment
from calmrl import CalibratedAlignment, GaussianImputer
from calmrl.errors import InputError
from calmrl.imputers import GaussianLatent
from calmrl.losses import LOSSES, InstanceMatching, PMRLLoss

NAMES = ("image", "text", "audio")


def views(n: int = 48, d: int = 6, seed: int = 0, dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(n, d, generator=generator, dtype=torch.float64)
    made = {name: shared + 0.5 * torch.randn(n, d, generator=generator, dtype=torch.float64) for name in NAMES}
    return {name: normalize(v, dim=1).to(dtype).requires_grad_() for name, v in made.items()}


def pattern(n: int = 48, seed: int = 0) -> torch.Tensor:
    present = torch.rand(n, 3, generator=torch.Generator().manual_seed(seed)) < 0.6
    present[:, 1] |= ~present.any(1)
    return present


@cache
def fitted_state(seed: int) -> dict:
    z = {name: v.detach() for name, v in views(150, seed=9).items()}
    return GaussianImputer(latent_dim=3, max_iter=20, tol=1e-2, random_state=seed).fit(z, pattern(150, 9)).get_state()


def fitted(seed: int = 0) -> GaussianImputer:
    return GaussianImputer(latent_dim=3).set_state(deepcopy(fitted_state(seed)))


@pytest.mark.parametrize("objective", LOSSES)
def test_any_objective_on_observed_and_imputed(objective: str) -> None:
    z, present, imputer = views(), pattern(), fitted()
    align = CalibratedAlignment(objective, imputer=imputer, update="frozen")
    filled = imputer.transform(z, present)
    by_hand = {
        name: torch.where(present[:, j, None], z[name], normalize(filled[name], dim=1)) for j, name in enumerate(NAMES)
    }
    expected = LOSSES[objective]()(by_hand, torch.ones_like(present))
    value = align(z, present)
    torch.testing.assert_close(value, expected)
    assert align.last["objective"] == value.detach()
    for g, h in zip(*(torch.autograd.grad(v, list(z.values())) for v in (value, expected)), strict=True):
        torch.testing.assert_close(g, h)


def test_missing_values_are_never_read() -> None:
    z, present = views(), pattern()
    spoilt = {
        n: torch.where(present[:, j, None], v.detach(), torch.nan).requires_grad_()
        for j, (n, v) in enumerate(z.items())
    }
    for update in ("stepwise", "frozen"):
        value, again = (
            CalibratedAlignment(imputer=fitted(), update=update, certainty=True)(v, present) for v in (z, spoilt)
        )
        assert value == again
        expected, found = (torch.autograd.grad(v, list(t.values())) for v, t in ((value, z), (again, spoilt)))
        for j, (g, h) in enumerate(zip(expected, found, strict=True)):
            torch.testing.assert_close(g, h)
            assert not h[~present[:, j]].any()
    inferred = CalibratedAlignment(imputer=fitted(), update="frozen", certainty=True)(spoilt)
    torch.testing.assert_close(inferred, value)


def test_gradient_through_the_imputation_is_a_choice() -> None:
    z, present = views(), torch.ones(48, 3, dtype=torch.bool)
    present[:, 0] = False  # images are imputed from text and audio everywhere

    def loss(completed: dict[str, torch.Tensor], _: torch.Tensor) -> torch.Tensor:
        return (completed["image"] * torch.arange(6)).sum()  # looks at imputed vectors only

    through, around = (
        CalibratedAlignment(_module(loss), imputer=fitted(), update="frozen", impute_grad=grad)
        for grad in (True, False)
    )
    assert torch.autograd.grad(through(z, present), z["text"])[0].any()
    assert torch.autograd.grad(around(z, present), z["text"], allow_unused=True)[0] is None
    torch.testing.assert_close(around(z, present), through(z, present).detach())


def _module(function) -> nn.Module:  # type: ignore[no-untyped-def]
    module = nn.Module()
    module.forward = function  # type: ignore[method-assign]
    return module


class Known:
    """Imputes a fixed vector with a fixed standard deviation per entry."""

    def transform(self, z, present):  # type: ignore[no-untyped-def]
        mean = torch.tensor([0.6, 0.0], dtype=torch.float64)
        return {n: torch.where(present[:, j, None], v, mean) for j, (n, v) in enumerate(z.items())}

    def impute(self, z, present, return_std=False):  # type: ignore[no-untyped-def]
        std = {n: torch.where(present[:, j, None], 0.0, torch.full_like(v, 0.4)) for j, (n, v) in enumerate(z.items())}
        return self.transform(z, present), std


@pytest.mark.parametrize(
    ("renormalize", "certainty", "length"),
    [
        (True, False, 1.0),
        (False, False, 0.6),
        (True, True, (0.36 / (0.36 + 0.32)) ** 0.5),
        (False, True, 0.6 * (0.36 / (0.36 + 0.32)) ** 0.5),
    ],
)
def test_length_of_imputed_vectors(renormalize: bool, certainty: bool, length: float) -> None:
    align = CalibratedAlignment(imputer=Known(), update="frozen", renormalize=renormalize, certainty=certainty)
    z = {"a": 3.0 * torch.eye(2, dtype=torch.float64), "b": torch.eye(2, dtype=torch.float64)}
    present = torch.tensor([[True, False], [True, True]])
    completed = align.complete(z, present)
    torch.testing.assert_close(completed["b"][0], torch.tensor([length, 0.0], dtype=torch.float64))
    assert torch.equal(completed["a"], z["a"])  # observed vectors as they are, whatever their length
    assert torch.equal(completed["b"][1], z["b"][1])


def test_updates_only_while_training() -> None:
    z, present = views(), pattern()
    stepwise = CalibratedAlignment(imputer=GaussianImputer(latent_dim=3))
    stepwise(z, present)
    before = {name: w.clone() for name, w in stepwise.imputer.W_.items()}
    stepwise.eval()
    stepwise(z, present)
    assert all(torch.equal(stepwise.imputer.W_[name], w) for name, w in before.items())
    stepwise.train()
    stepwise(z, present)
    assert not all(torch.equal(stepwise.imputer.W_[name], w) for name, w in before.items())


def test_momentum_sets_the_running_average() -> None:
    align = CalibratedAlignment(imputer=GaussianImputer(latent_dim=3), momentum=0.9)
    assert align.imputer.step_size == pytest.approx(0.1)


def test_gradient_mode_fits_by_likelihood_only() -> None:
    z, present = views(), pattern()
    latent = GaussianLatent(fitted().parameters_)
    align = CalibratedAlignment(imputer=latent, update="gradient")
    value = align(z, present)
    detached = {name: v.detach() for name, v in z.items()}
    value.backward()
    found = [p.grad.clone() for p in latent.parameters()]
    latent.zero_grad()
    likelihood = latent(detached, present)
    likelihood.backward()
    torch.testing.assert_close(align.last["negative_log_likelihood"], likelihood.detach())
    for g, p in zip(found, latent.parameters(), strict=True):
        torch.testing.assert_close(g, p.grad)
    objective_only = CalibratedAlignment(imputer=latent, update="gradient").eval()(z, present)
    torch.testing.assert_close(value - likelihood, objective_only)
    assert all(p.requires_grad for p in latent.parameters())
    with pytest.raises(InputError, match="GaussianLatent"):
        CalibratedAlignment(imputer=GaussianImputer(), update="gradient")


def test_state_is_saved_and_loads_into_a_fresh_object() -> None:
    z, present = views(), pattern()
    align = CalibratedAlignment("contrastive", imputer=GaussianImputer(latent_dim=3))
    empty = align.state_dict()  # nothing learned yet
    CalibratedAlignment("contrastive", imputer=GaussianImputer(latent_dim=3)).load_state_dict(empty)
    for step in range(3):
        align(views(seed=step), pattern(seed=step))
    file = io.BytesIO()
    torch.save(align.state_dict(), file)
    file.seek(0)
    fresh = CalibratedAlignment("contrastive", imputer=GaussianImputer(latent_dim=3))
    fresh.load_state_dict(torch.load(file, weights_only=True))
    assert fresh(z, present) == align(z, present)  # both go on from the same running statistics
    assert fresh.eval()(z, present) == align.eval()(z, present)
    third = CalibratedAlignment("contrastive", imputer=GaussianImputer(latent_dim=3))
    third.load_state_dict(load(save(align.state_dict())))  # formats that hold nothing but tensors
    assert third.eval()(z, present) == align.eval()(z, present)
    latent = GaussianLatent(fitted().parameters_)
    by_gradient = CalibratedAlignment(imputer=latent, update="gradient")
    other = CalibratedAlignment(imputer=GaussianLatent(fitted(3).parameters_), update="gradient")
    other.load_state_dict(by_gradient.state_dict())
    assert other.eval()(z, present) == by_gradient.eval()(z, present)


def test_matching_sees_observed_modalities_only() -> None:
    z, present = views(dtype=torch.float32), pattern()
    torch.manual_seed(0)
    matching = InstanceMatching(NAMES, 6, hidden=8, layers=1, heads=2)
    plain = CalibratedAlignment(imputer=fitted(), update="frozen")
    both = CalibratedAlignment(imputer=fitted(), update="frozen", matching=matching, matching_weight=0.1)
    draws = [torch.Generator().manual_seed(1) for _ in range(2)]
    expected = plain(z, present) + 0.1 * matching(z, present, generator=draws[0])
    torch.testing.assert_close(both(z, present, generator=draws[1]), expected)
    torch.testing.assert_close(both.last["objective"] + 0.1 * both.last["matching"], expected)


def test_bfloat16_autocast() -> None:
    z, present = views(dtype=torch.bfloat16), pattern()
    align = CalibratedAlignment(imputer=GaussianImputer(latent_dim=3), certainty=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = align(z, present)
    value.backward()
    assert value.dtype == torch.float32
    assert all(v.grad.dtype == torch.bfloat16 and torch.isfinite(v.grad).all() for v in z.values())


def test_a_modality_the_batch_lacks_is_imputed() -> None:
    z, present, imputer = views(), pattern(), fitted()
    present[:, 1] |= ~present[:, 0]
    present[:, 2] = False
    full = CalibratedAlignment(imputer=imputer, update="frozen")(z, present)
    fewer = {name: z[name] for name in NAMES[:2]}
    torch.testing.assert_close(CalibratedAlignment(imputer=imputer, update="frozen")(fewer, present[:, :2]), full)


def test_errors_say_what_to_do() -> None:
    with pytest.raises(InputError, match='did you mean "pmrl"'):
        CalibratedAlignment("pmlr", imputer=GaussianImputer())
    with pytest.raises(InputError, match="no modality at all"):
        CalibratedAlignment(PMRLLoss(), imputer=GaussianImputer())(views(), torch.zeros(48, 3, dtype=torch.bool))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"weight": 1.5}, "weight must lie between 0 and 1; got 1.5"),
        ({"weight": -0.1}, "weight must lie between 0 and 1; got -0.1"),
        ({"momentum": -0.1}, r"momentum must be in \[0, 1\); got -0.1"),
        ({"m_every": 0}, "m_every must be 1 or more batches; got 0"),
        ({"impute_from": "end"}, "impute_from must be current or start; got 'end'"),
        ({"update": "never"}, "stepwise, frozen, gradient"),
        ({"imputer": Known()}, 'update="frozen"'),
        ({"momentum": 1.0}, "momentum must be in"),
        ({"momentum": 0.9, "update": "frozen"}, "running statistics"),
        ({"imputer": Known(), "momentum": 0.5, "update": "frozen"}, "momentum needs update"),
        (
            {"imputer": nn.Linear(1, 1), "certainty": True, "update": "frozen"},
            "certainty needs predictive standard deviations, and Linear has none; pass an imputer",
        ),
    ],
)
def test_options_that_cannot_be(options: dict, said: str) -> None:
    with pytest.raises(InputError, match=said):
        CalibratedAlignment(**{"imputer": GaussianImputer(), **options})


@pytest.mark.parametrize("options", [{"weight": 0.0}, {"weight": 0.5}, {"m_every": 1}, {"momentum": 0.0}], ids=str)
def test_options_at_their_limits(options: dict) -> None:
    ((name, value),) = options.items()
    align = CalibratedAlignment(imputer=GaussianImputer(), **options)
    assert (1 - align.imputer.step_size if name == "momentum" else getattr(align, name)) == value


@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0])
def test_weight_of_imputed_rows(weight: float) -> None:
    z, present, imputer = views(), pattern(), fitted()
    shapes = []

    def loss(completed: dict[str, torch.Tensor], mask: torch.Tensor) -> torch.Tensor:
        shapes.append(bool(mask.all()))
        return (mask.sum() * completed["image"].square()).sum()

    align = CalibratedAlignment(_module(loss), imputer=imputer, update="frozen", weight=weight)
    expected = weight * loss(align.complete(z, present), torch.ones_like(present)) + (1 - weight) * loss(z, present)
    shapes.clear()
    torch.testing.assert_close(align(z, present), expected)
    assert shapes == [True] * (weight > 0) + [False] * (weight < 1)  # nothing is computed that counts for nothing
    torch.testing.assert_close(align.last["missing"], (~present).float().mean())


def test_without_weight_nothing_is_imputed() -> None:
    z, present = views(), pattern()
    align = CalibratedAlignment(imputer=GaussianImputer(), update="frozen", weight=0.0)  # an imputer that cannot yet
    torch.testing.assert_close(align(z, present), PMRLLoss()(z, present))


@pytest.mark.parametrize("options", [{"weight": 0.0}, {"certainty": True}, {"m_every": 1}], ids=str)
def test_every_batch_is_learned_from(options: dict) -> None:
    """Where imputing cannot take the batch into the statistics on its way, each batch is solved for."""
    align = CalibratedAlignment(imputer=GaussianImputer(latent_dim=2), **options)
    plain = GaussianImputer(latent_dim=2)
    for step in range(24):
        z = {name: v.detach() for name, v in views(12, seed=step).items()}
        align(z, pattern(12, seed=step))
        plain.partial_fit(z, pattern(12, seed=step))
    assert align.imputer.n_iter_ == 24
    for name, w in plain.W_.items():
        torch.testing.assert_close(align.imputer.W_[name], w)


def test_m_steps_fall_on_multiples_after_the_first_twenty() -> None:
    align = CalibratedAlignment(imputer=GaussianImputer(latent_dim=2), m_every=11)
    solved = []
    for step in range(36):
        before = getattr(align.imputer, "parameters_", None)
        align(views(8, seed=step), pattern(8, seed=step))
        if align.imputer.parameters_ is not before:
            solved.append(step)
    assert solved == [*range(20), 22, 33]
    assert align.imputer.n_iter_ == 36  # all of them entered the running statistics


def test_nothing_is_learned_beside_training() -> None:
    z, present = views(), pattern()
    for align in (
        CalibratedAlignment(imputer=fitted()).eval(),
        CalibratedAlignment(imputer=fitted(), update="frozen"),
        CalibratedAlignment(imputer=fitted(), update="frozen", certainty=True),
    ):
        before = align.get_extra_state()
        align(z, present)
        align.complete({name: v.detach() for name, v in z.items()}, present)
        assert torch.equal(align.get_extra_state(), before)


def test_a_mixture_imputes_too() -> None:
    z, present = views(), pattern()
    seen = {name: v.detach() for name, v in z.items()}
    imputer = GaussianImputer(latent_dim=2, n_components=2, max_iter=3, tol=1e-1, random_state=0).fit(seen, present)
    completed = CalibratedAlignment(imputer=imputer, update="frozen").complete(seen, present)
    for j, name in enumerate(NAMES):
        expected = normalize(imputer.transform(seen, present)[name], dim=1)
        torch.testing.assert_close(completed[name], torch.where(present[:, j, None], seen[name], expected))


def test_start_goes_with_its_option() -> None:
    z, present = views(), pattern()
    start = {name: v.detach() for name, v in views(seed=1).items()}
    plain, fixed = (CalibratedAlignment(imputer=fitted(), impute_from=x).eval() for x in ("current", "start"))
    for align, given in ((plain, start), (fixed, None)):
        with pytest.raises(InputError, match='start and impute_from="start" go together'):
            align(z, present, start=given)
    completed = fixed.complete(z, present, start=start)
    filled = plain.complete(start, present)
    for j, name in enumerate(NAMES):
        torch.testing.assert_close(completed[name], torch.where(present[:, j, None], z[name], filled[name]))


def test_seconds_are_counted() -> None:
    align = CalibratedAlignment(imputer=fitted(), update="frozen")
    began = time.perf_counter()
    align(views(), pattern())
    once = align.seconds
    align(views(), pattern())
    assert 0 < once < align.seconds < time.perf_counter() - began


def test_an_imputer_without_state_is_not_saved() -> None:
    with pytest.raises(InputError, match="Known has no get_state, so it cannot be saved in a state_dict"):
        CalibratedAlignment(imputer=Known(), update="frozen").state_dict()


def test_example_in_the_docstring_runs() -> None:
    failed, tried = doctest.testmod(calmrl.alignment)
    assert tried
    assert not failed
