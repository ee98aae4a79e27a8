"""Many runs: grids of settings, engines that perform them, the paper's experiments, and their results."""
