"""The linear-Gaussian latent model with shared latents: fitted from observed modalities only, it imputes, embeds and scores.

| module | what it holds |
|---|---|
| `rows` | where rows come from, sorted by pattern into packs; counts, means and variances of the first pass |
| `model` | the parameters, and the posterior of the latents that follows from them, of whole rows and of rows with holes |
| `statistics` | the E-step: expected sufficient statistics, from rows or from sums by pattern |
| `em` | the M-step with its prior, the loop, its checkpoint, mixtures, fits by `Settings` |
| `online` | batches of a stream: their posterior, completed, with the gradient through that; running statistics, stepwise EM |
| `whitening` | fits in partly whitened principal directions, and the way back |
| `predict` | what a fitted model says: imputed values, deviations, draws, likelihoods, one shared space |
| `held_out` | hidden blocks, how well a model brings them back, and trials that stop early on them |
| `choose` | the search over settings, and what "auto" is where nothing is searched |
| `storage` | everything learned as plain data, and back |

Each imports only modules above it in the table. The estimator on top of all is `calmrl.imputers.gaussian.GaussianImputer`;
`calmrl.aligner` fits the same model to features of its own.
"""
