"""Projectors on frozen features: the model for people who have embeddings."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from calmrl.aligner.lift import Lift
from calmrl.errors import InputError


class Heads(nn.Module):
    """One projector per modality into a common space, on features as they come.

    z^m = normalize(head_m((x^m - centre_m) map_m)), computed for the rows that have m; the others are 0.

    - `widths`: modality -> width of its features; `width`: of the common space.
    - `hidden`: None is a linear head, a number an MLP Linear - GELU - LayerNorm - Linear with so many hidden units.
    - `skip`: an MLP is added to a linear head instead, and starts at zero, so that it can start from a latent model too.
    - `inner`: modality -> columns of map_m (d_m x inner_m); None leaves out the map. `standardize` sets centre and map,
      which are not trained.
    - `kernels`: modality -> (number of landmarks, whether rows are scaled to length one): map_m is then applied to
      kernel values with so many landmarks, which `compare_with` sets.

    >>> heads = Heads({"image": 6, "text": 4}, width=3)
    >>> x = {"image": torch.randn(5, 6), "text": torch.randn(5, 4)}
    >>> heads(x, torch.ones(5, 2, dtype=torch.bool))["image"].shape
    torch.Size([5, 3])
    """

    kind = "heads"  # its name in MODELS

    def __init__(
        self,
        widths: Mapping[str, int],
        width: int = 512,
        *,
        hidden: int | None = None,
        inner: Mapping[str, int] | None = None,
        skip: bool = False,
        kernels: Mapping[str, tuple[int, bool]] | None = None,
    ) -> None:
        super().__init__()
        self.names, self.width, self.hidden, self.skip = tuple(widths), width, hidden, skip
        self.widths, self.inner = dict(widths), None if inner is None else dict(inner)
        self.kernels = None if kernels is None else {name: tuple(kernels[name]) for name in widths}
        self.heads = nn.ModuleDict({name: _head((inner or widths)[name], width, hidden, skip) for name in widths})
        for name, inside in widths.items():
            self.register_buffer(f"centre_{name}", torch.zeros(inside))
            rows = inside
            if self.kernels is not None:
                rows = self.kernels[name][0]
                self.register_buffer(f"landmarks_{name}", torch.zeros(rows, inside))
                self.register_buffer(f"offset_{name}", torch.zeros(rows))
                self.register_buffer(f"shape_{name}", torch.zeros(2, dtype=torch.float64))
            if inner is not None:
                self.register_buffer(f"map_{name}", torch.eye(rows, inner[name]))

    @property
    def arguments(self) -> dict[str, Any]:
        """What to call the class with to get one of the same shape."""
        sizes = {"widths": self.widths, "width": self.width, "hidden": self.hidden, "inner": self.inner}
        return sizes | {"skip": self.skip, "kernels": self.kernels}

    def standardize(self, centre: Mapping[str, Tensor], maps: Mapping[str, Tensor]) -> None:
        """Subtract `centre[name]` (d,) from the features and multiply them by `maps[name]` (d, inner) before the head."""
        for name in self.names:
            self.get_buffer(f"centre_{name}").copy_(centre[name])
            self.get_buffer(f"map_{name}").copy_(maps[name])

    def compare_with(self, lifts: Mapping[str, Lift]) -> None:
        """Take over kernel features: landmarks, kernel and directions of every modality."""
        for name, lift in lifts.items():
            parts = {"centre": lift.centre, "landmarks": lift.landmarks, "offset": lift.offset}
            for part, values in (parts | {"shape": lift.shape, "map": lift.projection}).items():
                self.get_buffer(f"{part}_{name}").copy_(values)

    def standardized(self, name: str, x: Tensor) -> Tensor:
        """Features as the head of this modality sees them."""
        if self.kernels is not None:
            landmarks, shape, offset, directions = (
                self.get_buffer(f"{part}_{name}") for part in ("landmarks", "shape", "offset", "map")
            )
            centre, unit = self.get_buffer(f"centre_{name}"), bool(self.kernels[name][1])
            return Lift(centre, unit, landmarks, shape, offset, directions, variance=offset[:0])(x)
        centred = x - self.get_buffer(f"centre_{name}")
        return centred if self.inner is None else centred @ self.get_buffer(f"map_{name}")

    def start_from(self, layers: nn.ModuleDict) -> None:
        """Take over linear layers, for instance `GaussianImputer.as_heads()` fitted on standardised features."""
        if self.hidden is not None and not self.skip:
            raise InputError("an MLP cannot start from a latent model; leave out hidden, or pass skip=True")
        layer: Any
        for name, layer in layers.items():
            head: Any = self.heads[name]
            head = head.linear if isinstance(head, SkipHead) else head
            if layer.weight.shape != head.weight.shape:
                raise InputError(
                    f"the latent model has {len(layer.weight)} latents but the heads have width {self.width}; "
                    "make them equal"
                )
            with torch.no_grad():
                head.weight.copy_(layer.weight)
                head.bias.copy_(layer.bias)

    def forward(self, inputs: Mapping[str, Tensor], present: Tensor) -> dict[str, Tensor]:
        """Unit vectors (N, width) for every modality; 0 in rows that lack it."""
        z = {}
        for j, name in enumerate(self.names):
            has = present[:, j]
            projected = normalize(self.heads[name](self.standardized(name, inputs[name][has])), dim=1)
            rows = projected.new_zeros(len(has), self.width)
            z[name] = rows.index_put((has.nonzero()[:, 0],), projected)
        return z

    def encode(self, inputs: Mapping[str, Tensor], present: Tensor) -> tuple[dict[str, Tensor], None]:
        """(`forward`, the tokens a matching head could look at: none)."""
        return self(inputs, present), None


class SkipHead(nn.Module):
    """linear(x) + mlp(x), where the last layer of the MLP starts at zero."""

    def __init__(self, linear: nn.Linear, mlp: nn.Sequential) -> None:
        super().__init__()
        self.linear, self.mlp = linear, mlp
        last: Any = mlp[-1]
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(n, inner) -> (n, width)."""
        return self.linear(x) + self.mlp(x)


def _head(inside: int, width: int, hidden: int | None, skip: bool) -> nn.Module:
    if hidden is None:
        return nn.Linear(inside, width)
    mlp = nn.Sequential(nn.Linear(inside, hidden), nn.GELU(), nn.LayerNorm(hidden), nn.Linear(hidden, width))
    return SkipHead(nn.Linear(inside, width), mlp) if skip else mlp
