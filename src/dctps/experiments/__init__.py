"""Many runs: grids of settings, engines that do what is missing, the paper's experiments, and their results."""
