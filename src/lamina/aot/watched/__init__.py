"""Who asks for the gradient of a tensor."""
