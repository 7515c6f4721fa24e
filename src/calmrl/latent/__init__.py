"""The linear-Gaussian latent model with shared latents: fitted from observed modalities only, it imputes, embeds and scores."""
