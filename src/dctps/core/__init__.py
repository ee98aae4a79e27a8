"""The mathematics: transforms, offsets, supports and counts. Nothing here is an nn.Module."""
