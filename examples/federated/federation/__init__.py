"""Federated learning of one network on CIFAR-10 with dctps.federated, as an app of Flower."""
