"""The sections configs are made of, and the config of `calmrl impute`.

Models are strict (no text where a number belongs) and know every key they allow; an unknown key is an error.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Auto = Literal["auto"]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
Seed = Annotated[int, Field(ge=0)]


class Section(BaseModel):
    """What all sections share: unknown keys are forbidden, types are strict."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class GaussianSection(Section):
    """The latent Gaussian model; "auto" chooses the value on held-out blocks of the data."""

    method: Literal["gaussian"]
    latent_dim: Count | Auto = "auto"
    n_components: Count | Auto = 1
    noise: Literal["isotropic", "diagonal", "auto"] = "isotropic"
    prior: Annotated[float, Field(ge=0)] | Auto = "auto"
    shrinkage: Annotated[float, Field(ge=0)] | Auto = "auto"
    whitening: Annotated[float, Field(ge=0, le=1)] | Auto = "auto"
    m_step: Literal["joint", "sequential"] = "joint"
    max_iter: Count = 200
    tol: Positive = 1e-6


class AutoSection(Section):
    """Whatever imputes held-out blocks best: one imputer, or a weighted average of a few."""

    method: Literal["auto"]


class KernelSection(Section):
    """Kernel ridge regression of each modality on the others, on every row that has it."""

    method: Literal["kernel"]
    base: Literal["gaussian", "mean"] = "gaussian"
    unit_rows: bool | Auto = "auto"
    gamma: Annotated[float, Field(ge=0)] | Auto = "auto"
    linear: Annotated[float, Field(ge=0)] | Auto = "auto"
    alpha: Positive | Auto = "auto"
    landmarks: Count = 1500


class MeanSection(Section):
    """The mean of the observed rows of the modality."""

    method: Literal["mean"]


class KNNSection(Section):
    """The mean over the nearest rows that have the modality."""

    method: Literal["knn"]
    n_neighbors: Count = 10


class RidgeSection(Section):
    """Ridge regression from the observed modalities, one per pattern; its strength is chosen by leave-one-out error."""

    method: Literal["ridge"]
    min_rows: Count = 10


class MVAESection(Section):
    """Multimodal VAE with a product of experts."""

    method: Literal["mvae"]
    latent_dim: Count = 32
    hidden: Count = 512
    beta: Positive = 0.5
    epochs: Count = 40
    batch_size: Count = 128
    learning_rate: Positive = 2e-3
    patience: Count = 10


class MoPoESection(Section):
    """Multimodal VAE with a mixture of products of experts."""

    method: Literal["mopoe"]
    latent_dim: Count = 32
    hidden: Count = 256
    beta: Positive = 0.2
    epochs: Count = 40
    batch_size: Count = 128
    learning_rate: Positive = 2e-3
    patience: Count = 10


class SMILSection(Section):
    """Weighted sums of modality priors with meta-learned weights."""

    method: Literal["smil"]
    latent_dim: Count = 32
    hidden: Count = 256
    priors: Count = 64
    inner_rate: Positive = 1e-3
    epochs: Count = 40
    batch_size: Count = 128
    learning_rate: Positive = 2e-3
    patience: Count = 10


class GFASection(Section):
    """Group factor analysis: shared and private factors with automatic relevance."""

    method: Literal["gfa"]
    latent_dim: Count = 32
    max_iter: Count = 200
    tol: Positive = 1e-4


class KnowledgeBridgerSection(Section):
    """Remembered items as candidates, ranked by likeness and by structure; training-free."""

    method: Literal["knowledge_bridger"]
    n_candidates: Count = 20
    structure: Annotated[float, Field(ge=0, le=1)] = 0.3
    temperature: Positive = 0.1
    landmarks: Count = 256


ImputerSection = Annotated[
    GaussianSection
    | AutoSection
    | KernelSection
    | MeanSection
    | KNNSection
    | RidgeSection
    | MVAESection
    | MoPoESection
    | SMILSection
    | GFASection
    | KnowledgeBridgerSection,
    Field(discriminator="method"),
]


class ImputeConfig(Section):
    """How `calmrl impute` completes features."""

    kind: Literal["impute"]
    imputer: ImputerSection = AutoSection(method="auto")
    seed: Seed = 0
    std: bool = False
