"""Signatures of a registry, by The Update Framework (TUF): formats, keys, and the publisher's side."""
