"""Where packages come from: the configured registries, trust, caches, resolution and lock files."""
