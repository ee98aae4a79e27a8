"""Rewiring: weights that move to other positions while a network trains."""
