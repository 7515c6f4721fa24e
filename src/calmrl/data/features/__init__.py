"""Feature directories: one memory-mappable array per modality, a mask, and a table of the rows."""
