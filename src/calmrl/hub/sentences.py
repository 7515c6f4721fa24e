"""Sentences that several model cards share."""

SIMILAR = "New items must be like the rows that the model was fitted on, and encoded by the same encoders."
NO_NEWS = "An imputed value is a function of the observed ones: it adds no information about the single item."
UNCHECKED = "Nobody has checked the model for biases of its data or its encoders."
LIMITS = (SIMILAR, UNCHECKED)
