"""Figures and tables of the experiments, drawn from the rows of a sheet."""
