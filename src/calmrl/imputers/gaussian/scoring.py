"""How alike are two items, whatever modalities each has: cosine of posterior means, anchors, or a likelihood ratio."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from calmrl._support.registry import lookup
from calmrl.anchors import anchor
from calmrl.convention import Views, to_tensor
from calmrl.errors import InputError
from calmrl.imputers.gaussian.parameters import Parameters
from calmrl.imputers.gaussian.posterior import Expectation, sum_of
from calmrl.imputers.gaussian.predict import by_pattern, complete, packs_of, working_dtype


def posterior_means(params: Parameters, views: Views, shift: list[Tensor] | None = None) -> Tensor:
    """E[beta | observed], (N, L), for a single component: one shared space from any subset of modalities.

    Computed in float64, given in float64 if any modality is, else in float32.

    `shift` is subtracted from the data first, for parameters in a centred frame.
    """
    need_one_component(params, "embed")
    if shift is not None:
        params = params.moved(shift)
    out = []
    for start, stop, packed in packs_of(views, params):
        means = packed.z[0].new_zeros((stop - start, params.latent_dim))
        for rows, _, post in by_pattern(params, packed):
            means = means.index_put((rows,), post.mean[:, 0])
        out.append(means)
    whole = torch.cat(out) if out else torch.zeros((0, params.latent_dim), device=views.present.device)
    return whole.to(working_dtype(views))


def posterior_moments(params: Parameters, views: Views) -> tuple[Tensor, Tensor]:
    """Mean (N, L) and covariance (N, L, L) of the latents, for a single component."""
    need_one_component(params, "posterior")
    covariance = torch.zeros(
        (len(views), params.latent_dim, params.latent_dim), dtype=torch.float64, device=views.present.device
    )
    for start, _, packed in packs_of(views, params):
        for rows, _, post in by_pattern(params, packed):
            covariance[start + rows] = post.covariance[0]
    return posterior_means(params, views), covariance


def score(params: Parameters, queries: Views, gallery: Views, rule: str) -> Tensor:
    """(queries, gallery) similarities by one of SCORINGS."""
    return lookup(SCORINGS, rule, "scoring")(params, queries, gallery)


def cosine(params: Parameters, queries: Views, gallery: Views) -> Tensor:
    """Cosine between posterior means."""
    return normalize(posterior_means(params, queries), dim=1) @ normalize(posterior_means(params, gallery), dim=1).T


def anchor_cosine(params: Parameters, queries: Views, gallery: Views) -> Tensor:
    """Inner product of the (unit) anchors of completed items."""
    return completed_anchors(params, queries) @ completed_anchors(params, gallery).T


def completed_anchors(params: Parameters, views: Views) -> Tensor:
    """The anchor of every completed item, (N, d): needs modalities of equal width."""
    if len(set(params.widths)) > 1:
        widths = ", ".join(f"{name}: {width}" for name, width in zip(params.names, params.widths, strict=True))
        raise InputError(
            f"anchors need modalities of one width, but they differ ({widths}); use cosine or likelihood_ratio"
        )
    filled = {name: to_tensor(array) for name, array in complete(params, views).items()}
    return anchor(filled, torch.ones_like(views.present))


def likelihood_ratio(params: Parameters, queries: Views, gallery: Views) -> Tensor:
    """log p(q, g) - log p(q) - log p(g) for every pair: how much better one latent explains both than two do.

    With h = W^T Psi^-1 (z - mu) summed over what a row has, J = W^T Psi^-1 W, V_q = (I + J_q)^-1 and V_qg = (I + J_q + J_g)^-1,
        1/2 [ (h_q + h_g)^T V_qg (h_q + h_g) - h_q^T V_q h_q - h_g^T V_g h_g + log|V_qg| - log|V_q| - log|V_g| ].
    One factorisation per pair of patterns.
    """
    need_one_component(params, "likelihood-ratio scoring")
    expect = Expectation(params, torch.float64)
    scores = torch.zeros((len(queries), len(gallery)), dtype=torch.float64, device=queries.present.device)
    right = list(_natural(params, expect, gallery))
    for rows_q, J_q, h_q in _natural(params, expect, queries):
        own_q, logdet_q = _own(expect, J_q, h_q)
        for rows_g, J_g, h_g in right:
            own_g, logdet_g = _own(expect, J_g, h_g)
            chol = torch.linalg.cholesky(expect.eye + J_q + J_g)
            V = torch.cholesky_inverse(chol)
            logdet = 2 * chol.diagonal().log().sum()
            square_q, square_g = ((h_q @ V) * h_q).sum(1), ((h_g @ V) * h_g).sum(1)
            block = square_q[:, None] + square_g + 2 * (h_q @ V @ h_g.T) - own_q[:, None] - own_g
            block = 0.5 * (block - logdet + logdet_q + logdet_g)
            scores[rows_q[:, None], rows_g] = block
    return scores


def _own(expect: Expectation, J: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """h^T (I + J)^-1 h per row, and log|I + J|."""
    chol = torch.linalg.cholesky(expect.eye + J)
    whitened = torch.linalg.solve_triangular(chol, h.T, upper=False)  # (L, n)
    return whitened.square().sum(0), 2 * chol.diagonal().log().sum()


def _natural(params: Parameters, expect: Expectation, views: Views) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """(rows, J, h) per pattern: the evidence that rows give about the latents."""
    for start, _, packed in packs_of(views, params):
        for p in range(len(packed.patterns)):
            held = packed.slices(p)
            J = sum_of(expect.information[m][0] for m, _ in held)
            h = sum_of(z @ expect.scaled[m] - expect.offset[m][0] for m, z in held)
            yield start + packed.order[packed.bounds[p] : packed.bounds[p + 1]], J, h


def linear_heads(params: Parameters) -> nn.ModuleDict:
    """One linear layer per modality, z^m -> E[beta | z^m alone] = V_m W^mT Psi_m^-1 (z^m - mu^m)."""
    need_one_component(params, "as_heads")
    expect = Expectation(params, torch.float64)
    heads = nn.ModuleDict()
    for m, (name, width) in enumerate(zip(params.names, params.widths, strict=True)):
        V = torch.linalg.inv(expect.eye + expect.information[m][0])
        weight = V @ expect.scaled[m].T  # (L, d)
        head = nn.Linear(width, params.latent_dim)
        with torch.no_grad():
            head.weight.copy_(weight)
            head.bias.copy_(-weight @ params.mu[m][0])
        heads[name] = head.to(weight.device)
    return heads


def need_one_component(params: Parameters, what: str) -> None:
    if params.n_components != 1:
        raise InputError(
            f"{what} needs one shared latent space, but this model has {params.n_components} components, each with its own; "
            "fit with n_components=1"
        )


SCORINGS: dict[str, Callable[[Parameters, Views, Views], Tensor]] = {
    "cosine": cosine,
    "anchor": anchor_cosine,
    "likelihood_ratio": likelihood_ratio,
}
