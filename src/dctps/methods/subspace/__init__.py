"""Hyperplane Projection: training in a random subspace of all weights together."""
