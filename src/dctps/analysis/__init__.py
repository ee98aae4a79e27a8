"""What is drawn from results: figures, tables, and the page of a folder of runs."""
