"""A load generator in small parts (notebook 11): send requests, measure what a user feels, and say how sure that is.

``load`` sends, ``measures`` computes, ``power`` reads watts, ``commands`` writes the command lines of NVIDIA's tools.
"""
