"""Methods compared on one's own data: the same rows, the same budget, hyperparameters chosen on validation rows."""
