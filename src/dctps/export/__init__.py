"""Networks for other runtimes: ONNX files that hold the recipe of D instead of its numbers."""
