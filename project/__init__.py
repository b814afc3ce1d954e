"""Image classification with PyTorch Lightning, in a training loop whose numbers can be believed."""
