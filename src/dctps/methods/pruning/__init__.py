"""Pruning at initialisation: scores, the data that they are taken on, and the schedule."""
