"""Figures, tables, and the page of a folder of runs, all drawn from results."""
