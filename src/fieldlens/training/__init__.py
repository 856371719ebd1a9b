"""Recipes, the loss, the trainer and the training loop."""
