"""Torch's AOTAutograd, and the autograd functions that it and Lamina make."""
