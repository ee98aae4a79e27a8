"""The computation of y = (alpha D + S) x and its gradients: the routes of a layer, and how one is chosen."""
