"""Helpers of the serving course."""
