"""y = (alpha D + S) x and its gradients: the routes by which a layer computes, and how one is chosen."""
