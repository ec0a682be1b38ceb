"""The static catalogue: what registries hold, as pages that a browser reads from a folder."""
