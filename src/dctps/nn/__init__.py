"""Layers, the conversion of networks, and what can be said about a network."""
