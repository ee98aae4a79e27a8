"""The file of a sparse network: its contents, saving and loading."""
