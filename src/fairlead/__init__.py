"""Fairlead: a co-adaptive scheduler for deep-learning clusters, its simulator, and what they share."""

__version__ = "0.1.0"
