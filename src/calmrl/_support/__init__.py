"""What every room uses and no user needs: registries, atomic output, processes, spectra."""
