"""What the package asks of an imputer, of a model, of how it reads media and of whoever follows a long job.

Anything with these methods will do.
"""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Imputer(Protocol):
    """Imputes missing modalities; what was observed stays as it is."""

    def transform(self, z: Any, present: Any = None) -> Any:
        """`z` with every missing modality imputed."""

    def impute(self, z: Any, present: Any = None, return_std: bool = False) -> Any:
        """As `transform`; with `return_std` also a standard deviation per entry, 0 where observed."""


@runtime_checkable
class StreamingImputer(Protocol):
    """An imputer that learns batch by batch."""

    def partial_fit(self, z: Any, present: Any = None) -> Any: ...


@runtime_checkable
class StatefulImputer(Protocol):
    """An imputer whose learned state goes into a checkpoint."""

    def get_state(self) -> dict[str, Any]: ...

    def set_state(self, state: dict[str, Any]) -> Any: ...


@runtime_checkable
class Embedder(Protocol):
    """An imputer or a model that puts any subset of modalities into one space."""

    def embed(self, z: Any, present: Any = None) -> Any: ...


class Model(Protocol):
    """A trainable model: modalities in, one unit vector of length `width` per modality out."""

    names: tuple[str, ...]
    width: int

    def __call__(self, inputs: Mapping[str, Any], present: Any) -> Any:
        """Unit vectors (N, width) per modality."""

    def eval(self) -> Any:
        """Switch to evaluation."""


class Progress(Protocol):
    """Hears how a long job is getting on."""

    def __call__(self, done: int, total: int, what: str, /) -> None:
        """`done` of `total` pieces of `what` are finished; a total of 0 is not known."""


def no_progress(done: int, total: int, what: str, /) -> None:
    """Nobody follows."""


class MediaInputs(Protocol):
    """How a kind of model reads raw media; made from (section, modalities, root, seed) of a training config.

    `names` are the modalities to use, in the order of the model; `kinds` says of every modality that the model knows
    whether it is image, audio or text; `workers` is how many processes may look at files.
    """

    names: tuple[str, ...]
    kinds: Mapping[str, str]
    workers: int

    def missing(self) -> list[str]:
        """A sentence for every file that the model itself needs and that is not there."""

    def rows(
        self, manifest: Any, source: Any, *, name: str, rows: Any, present: Any = None, training: bool = True
    ) -> Any:
        """Some rows of the manifest of a source: a `RowSource` that also has the `left_out` of the manifest.

        `present` (all rows of the manifest, a column per name) hides modalities.
        """

    def shape(self, rows: Any) -> str:
        """The shape of an item of some rows, in words; rows that train together must have the same."""

    def measure(self, model: Any, rows: Any, z: Any, present: Any, device: str) -> list[Any]:
        """Measurements on test rows beyond those of every model, from their vectors `z`; perhaps none."""
