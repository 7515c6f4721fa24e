"""Before any training: what is missing, what it costs, and whether imputing it will help."""
