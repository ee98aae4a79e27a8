"""Methods that choose a support, move it while training, or replace it by a subspace."""
