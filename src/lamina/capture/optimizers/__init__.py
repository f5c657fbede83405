"""Steps of optimizers, as a trace sees them."""
