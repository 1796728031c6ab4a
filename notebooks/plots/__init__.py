"""Figures of one notebook alone, a module each; what several share is in servinglab.figures."""
