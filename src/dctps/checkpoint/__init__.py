"""The file of a sparse network: what is in it, writing it, reading it."""
