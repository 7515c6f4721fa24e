"""What every package uses and no user needs: registries, atomic output, processes, spectra."""
