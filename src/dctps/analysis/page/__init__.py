"""One HTML page of a folder of runs, which works offline."""
