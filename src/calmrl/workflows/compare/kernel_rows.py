"""The rows of a comparison on kernel features, which are computed once for all trials."""

from dataclasses import replace

from calmrl.models.heads.kernel import fit_kernels, lifted_rows
from calmrl.workflows.compare.rows import ComparedRows


def on_kernel_features(rows: ComparedRows, how: str, seed: int) -> ComparedRows:
    """The same rows; features compare with the observed training rows alone. `rows` have their features as they are."""
    lifts = fit_kernels(list(rows.data.train.values()), how, seed)
    data = replace(
        rows.data,
        train={name: lifted_rows(source, lifts) for name, source in rows.data.train.items()},
        validation=[lifted_rows(source, lifts) for source in rows.data.validation],
        widths={name: lift.width for name, lift in lifts.items()},
    )
    return replace(rows, data=data, test=lifted_rows(rows.test, lifts))
