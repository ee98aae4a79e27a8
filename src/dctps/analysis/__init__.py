"""What is looked at: the Jacobian at initialisation, figures, and the page of a folder of runs."""
