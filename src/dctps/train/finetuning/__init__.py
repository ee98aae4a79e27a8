"""Fine-tuning a pretrained network on images in folders or on texts in tables: W = W0 + S, by the loop of `train`."""
