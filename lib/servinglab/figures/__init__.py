"""Figures of the notebooks, one module for each notebook that draws its own; `style` is what they share."""
