"""What a fitted model says: imputed values with deviations, covariances and draws, likelihoods, and one shared space.

All follow from the posterior of the latents given what a row has. Rows are taken in blocks of bounded size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from calmrl.anchors import anchor
from calmrl.arrays import Array, Views, blocks_of_rows, like_input, to_tensor
from calmrl.errors import InputError
from calmrl.latent.model import (
    EntryPosterior,
    Expectation,
    Parameters,
    Posterior,
    entry_posteriors,
    sum_of,
    triangle,
)
from calmrl.latent.rows import Pack, has_holes, pack, working_dtype

PREDICT_BYTES = 1 << 27


def packs_of(views: Views, params: Parameters) -> Iterator[tuple[int, int, Pack]]:
    """(start, stop, pack) over the rows of the input, in chunks of bounded size; differentiable in the values.

    In float64: the posterior is a difference of products with the values as they are, which cancel where these lie far
    from zero.
    """
    row_bytes = 8 * (sum(params.widths) + params.n_components * params.latent_dim * 4)
    for start, stop in blocks_of_rows(len(views), row_bytes, PREDICT_BYTES):
        present, holes = views.present[start:stop], has_holes(views)
        yield start, stop, pack(views.rows(start, stop), present, params.widths, torch.float64, holes=holes)


def by_pattern(
    params: Parameters, packed: Pack, expect: Expectation | None = None
) -> Iterator[tuple[Tensor, Tensor, Posterior]]:
    """(rows of the pack, pattern, their posterior) for each pattern; `expect` keeps factors from call to call.

    Rows with holes come after the others, in chunks; their pattern is what all rows of the chunk have in full.
    """
    expect = Expectation(params, packed.z[0].dtype) if expect is None else expect
    for p, V, logdet in expect.factored(packed.patterns):
        yield packed.rows(p), packed.patterns[p], expect.rows(packed.slices(p), V, logdet)
    for post in entry_posteriors(params, packed.torn):
        full = post.patterns.all(0).split(params.widths)
        yield post.rows, torch.stack([columns.all() for columns in full]), post


def predict(params: Parameters, m: int, post: Posterior) -> tuple[Tensor, Tensor]:
    """Predictive mean of modality m per component (n, K, d), and the responsibilities (n, K)."""
    dtype = post.mean.dtype
    mean = (post.mean.transpose(0, 1) @ params.W[m].mT.to(dtype)).transpose(0, 1) + params.mu[m].to(dtype)
    return mean, torch.softmax(post.log_joint, dim=1).to(dtype)


def predictive_mean(params: Parameters, m: int, post: Posterior) -> Tensor:
    """E[z^m | observed] = sum_c r_c (W_c m_c + mu_c), (n, d)."""
    mean, resp = predict(params, m, post)
    return mean[:, 0] if params.n_components == 1 else (resp[..., None] * mean).sum(1)


def predictive_variance(params: Parameters, m: int, post: Posterior) -> Tensor:
    """Var[z^m | observed] per entry, (n, d): within each component W V W^T + Psi, and between components."""
    mean, resp = predict(params, m, post)
    centre = (resp[..., None] * mean).sum(1, keepdim=True)
    between = (resp[..., None] * (mean - centre) ** 2).sum(1)
    if post.covariance.ndim == 4:  # rows with holes
        within = _spread(params.W[m], post.covariance) + params.noise[m]  # (n, K, d)
        return (resp[..., None] * within).sum(1) + between
    within = ((params.W[m] @ post.covariance) * params.W[m]).sum(2) + params.noise[m]  # (K, d)
    return resp @ within.to(mean.dtype) + between


def _spread(W: Tensor, covariance: Tensor) -> Tensor:
    """The diagonal of W V W^T for every row and component, (n, K, d), as one product of upper triangles."""
    i, j = triangle(W.shape[2], W.device)
    twice = torch.where(i == j, 1.0, 2.0).to(W.dtype)
    flat = covariance[..., i, j].transpose(0, 1)  # (K, n, T)
    return (flat @ (twice * W[..., i] * W[..., j]).mT).transpose(0, 1)


def predictive_covariance(params: Parameters, m: int, post: Posterior) -> Tensor:
    """Cov[z^m | observed], (n, d, d)."""
    mean, resp = predict(params, m, post)
    W = params.W[m]
    noise = torch.diag_embed(params.noise[m]) if params.rotations is None else params.rotations[m].covariance()
    within = W @ post.covariance @ W.mT + noise  # (K, d, d); (n, K, d, d) of rows with holes
    gap = mean - (resp[..., None] * mean).sum(1, keepdim=True)
    between = torch.einsum("nk,nkd,nke->nde", resp, gap, gap)
    if within.ndim == 4:
        return (resp[..., None, None] * within).sum(1) + between
    return torch.tensordot(resp, within.to(mean.dtype), dims=1) + between


Filled = tuple[
    list[Tensor], list[Tensor]
]  # per modality of a pack: values (n, d), and deviations if they are asked for


def complete(params: Parameters, views: Views) -> dict[str, Array]:
    """The input with every missing modality and entry replaced by its predictive mean; observed entries as they were."""
    fill = _means_at_once if params.n_components == 1 else _by_pattern_filled
    return _fill(params, views, lambda packed: fill(params, packed))[0]


def complete_with_std(
    params: Parameters, views: Views, scale: list[float], hole_scale: list[float]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """As `complete`, and the predictive standard deviation per entry: 0 where observed.

    Times `scale` per modality where the modality is missing, times `hole_scale` in holes of one that is present.
    """
    return _fill(params, views, lambda packed: _by_pattern_filled(params, packed, scale, hole_scale))


def samples(params: Parameters, views: Views, generator: torch.Generator) -> dict[str, Array]:
    """The input with every missing modality and entry drawn from its predictive distribution, jointly per row."""

    def drawn(packed: Pack) -> Filled:
        filled = [packed.z[m].new_zeros((len(packed), width)) for m, width in enumerate(params.widths)]
        for rows, pattern, post in by_pattern(params, packed):
            for m, values in draw(params, (~pattern).nonzero()[:, 0].tolist(), post, generator).items():
                filled[m][rows] = values
        return filled, []

    return _fill(params, views, drawn)[0]


def _fill(
    params: Parameters, views: Views, fill: Callable[[Pack], Filled]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """(completed, deviations) by what `fill` says of each pack; no deviations if it says none."""
    parts: list[list[Tensor]] = [[] for _ in params.names]
    spread: list[list[Tensor]] = [[] for _ in params.names]
    for start, stop, packed in packs_of(views, params):
        filled, std = fill(packed)
        observed = views.observed(start, stop)
        for m, values in enumerate(views.rows(start, stop)):
            parts[m].append(keep_observed(values, observed[m], filled[m], views.given()))
        for m, block in enumerate(std):
            spread[m].append(torch.where(observed[m], 0.0, block) if views.holes else block)
    return join(parts, views, params.widths), join(spread, views, params.widths)


def _means_at_once(params: Parameters, packed: Pack) -> Filled:
    """Predictive means for a single component: one product per modality, whatever the patterns."""
    expect = Expectation.of(params, packed.z[0].dtype)
    missing = missing_means(expect, packed, expect.means(packed)[1])
    filled = [new.new_zeros((len(packed), new.shape[1])).index_copy(0, rows, new) for rows, new in missing]
    for post in entry_posteriors(params, packed.torn):
        own = [predictive_mean(params, m, post) for m in range(len(filled))]
        filled = [block.index_put((post.rows,), new) for block, new in zip(filled, own, strict=True)]
    return filled, []


def missing_means(expect: Expectation, packed: Pack, means: Tensor) -> list[tuple[Tensor, Tensor]]:
    """For every modality the rows of the pack that lack it, and E[z^m | observed] there; for a single component."""
    imputed = []
    for m, (W, mu) in enumerate(zip(expect.loadings, expect.centre, strict=True)):
        lacks = torch.ones(len(packed.order), dtype=torch.bool, device=means.device).index_fill_(
            0, packed.places[m], False
        )
        place = lacks.nonzero()[:, 0]
        imputed.append((packed.order[place], torch.addmm(mu[0], means.index_select(0, place), W[0].T)))
    return imputed


def _by_pattern_filled(
    params: Parameters, packed: Pack, scale: list[float] | None = None, hole_scale: list[float] | None = None
) -> Filled:
    """(predictive means, deviations) pattern by pattern; without scales there are no deviations."""
    filled = [packed.z[m].new_zeros((len(packed), width)) for m, width in enumerate(params.widths)]
    std = [torch.zeros_like(block) for block in filled] if scale is not None else []
    expect = None if params.W[0].requires_grad else Expectation.of(params, packed.z[0].dtype)
    for rows, pattern, post in by_pattern(params, packed, expect):
        for m in (~pattern).nonzero()[:, 0].tolist():
            filled[m] = filled[m].index_put((rows,), predictive_mean(params, m, post))
            if scale is not None and hole_scale is not None:
                factor: Tensor | float = scale[m]
                if isinstance(post, EntryPosterior):
                    factor = torch.where(post.present[:, m, None], hole_scale[m], scale[m])
                std[m] = std[m].index_put((rows,), factor * predictive_variance(params, m, post).sqrt())
    return filled, std


def keep_observed(values: Tensor | None, observed: Tensor, filled: Tensor, given: Array) -> Tensor:
    """What was observed as it came, bit for bit; the rest from `filled`. In the dtype of the input."""
    if values is None:
        return narrowed(filled, to_tensor(given[:0]).dtype)
    return torch.where(observed, values, narrowed(torch.where(observed, 0.0, filled), values.dtype))


def narrowed(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Values in the dtype of the input; where they do not fit in it, an error that says so."""
    if values.dtype == dtype:
        return values
    narrow = values.to(dtype)
    if bool((torch.isinf(narrow) & torch.isfinite(values)).any()):
        largest = float(values[torch.isfinite(values)].abs().max())
        raise InputError(
            f"imputed values or deviations reach {largest:.3g}, more than {dtype} holds; pass the input in a wider dtype"
        )
    return narrow


def join(parts: list[list[Tensor]], views: Views, widths: tuple[int, ...]) -> dict[str, Array]:
    """Chunks put together, as the kind of array that came in."""
    given = views.given()
    joined = {}
    for name, part, width in zip(views.names, parts, widths, strict=True):
        like = views.arrays[name] if views.arrays[name] is not None else given
        whole = torch.cat(part) if part else views.present.new_zeros((0, width), dtype=torch.float32)
        joined[name] = like_input(narrowed(whole, to_tensor(like[:0]).dtype), like)
    return joined


def row_likelihoods(params: Parameters, views: Views) -> Tensor:
    """log p(observed part of row i), (N,) float64."""
    out = torch.zeros(len(views), dtype=torch.float64, device=views.present.device)
    for start, _, packed in packs_of(views, params):
        for rows, _, post in by_pattern(params, packed):
            out[start + rows] = torch.logsumexp(post.log_joint, dim=1)
    return out


def predictive_covariances(params: Parameters, views: Views, m: int) -> Tensor:
    """Cov[z^m | the other modalities that each row has], (N, d, d) float64."""
    present = views.present.clone()
    present[:, m] = False
    if not bool(present.any(1).all()):
        raise InputError(
            f"some rows have only {params.names[m]!r}; its covariance given the others needs another modality"
        )
    out = []
    for start, stop, packed in packs_of(replace(views, present=present), params):
        block = packed.z[0].new_zeros((stop - start, params.widths[m], params.widths[m]))
        for rows, _, post in by_pattern(params, packed):
            block[rows] = predictive_covariance(params, m, post)
        out.append(block)
    return torch.cat(out)


def draw(params: Parameters, m_missing: list[int], post: Posterior, generator: torch.Generator) -> dict[int, Tensor]:
    """One joint draw of the missing modalities from their predictive distribution: {modality: (n, d)}."""
    n, _, L = post.mean.shape
    dtype, device = post.mean.dtype, post.mean.device
    # drawn on the CPU, so that a seed means the same on every device
    choice = torch.multinomial(torch.softmax(post.log_joint, 1).cpu(), 1, generator=generator)[:, 0].to(device)
    standard = torch.randn(n, L, generator=generator, dtype=torch.float64).to(device)
    chol = torch.linalg.cholesky(post.covariance)  # (K, L, L)
    beta = post.mean[torch.arange(n, device=device), choice].double()
    chosen = chol[choice] if chol.ndim == 3 else chol[torch.arange(n, device=device), choice]
    beta = beta + (chosen @ standard[..., None])[..., 0]
    drawn = {}
    for m in m_missing:
        W, mu, noise = params.W[m][choice], params.mu[m][choice], params.noise[m][choice]
        eps = torch.randn(mu.shape, generator=generator, dtype=torch.float64).to(device)
        own = noise.sqrt() * eps if params.rotations is None else params.rotations[m].draw(eps, choice)
        drawn[m] = ((W @ beta[..., None])[..., 0] + mu + own).to(dtype)
    return drawn


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
            covariance[start + rows] = post.covariance[..., 0, :, :]
    return posterior_means(params, views), covariance


def cosine(params: Parameters, queries: Views, gallery: Views) -> Tensor:
    """Cosine between posterior means."""
    return normalize(posterior_means(params, queries), dim=1) @ normalize(posterior_means(params, gallery), dim=1).T


def anchor_cosine(params: Parameters, queries: Views, gallery: Views) -> Tensor:
    """Inner product of the (unit) anchors of completed items: needs modalities of equal width."""
    if len(set(params.widths)) > 1:
        widths = ", ".join(f"{name}: {width}" for name, width in zip(params.names, params.widths, strict=True))
        raise InputError(
            f"anchors need modalities of one width, but they differ ({widths}); use cosine or likelihood_ratio"
        )
    completed = ({name: to_tensor(a) for name, a in complete(params, views).items()} for views in (queries, gallery))
    left, right = (anchor(z, torch.ones(len(next(iter(z.values()))), len(z), dtype=torch.bool)) for z in completed)
    return left @ right.T


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
            yield start + packed.rows(p), J, h
        for post in entry_posteriors(params, packed.torn):
            for i, row in enumerate(post.rows):
                precision = torch.linalg.inv(post.covariance[i, 0])
                yield start + row[None], precision - expect.eye, (precision @ post.mean[i, 0])[None]


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
