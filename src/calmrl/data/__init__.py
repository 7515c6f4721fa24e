"""From files to aligned features: feature directories, missingness, batches."""
