"""The keys that a config may have: one pydantic model per command."""
