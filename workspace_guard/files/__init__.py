"""Careful hands: paths, digests, durable replacement, journal, lock, layout."""
