"""A stand-in in name only: what imports it finds the version of the pinned container."""

__version__ = "1.2.1"
