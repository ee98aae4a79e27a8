"""Small things that all rooms use; no mathematics of the layers."""
