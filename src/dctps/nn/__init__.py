"""The layers W = alpha D + S, the conversion of networks to them and back, and reports about a network."""
