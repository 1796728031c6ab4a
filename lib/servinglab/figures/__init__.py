"""Figures of the decoding notebooks, one module for each of 06 to 09."""
