"""Functions of autograd's that the user writes."""
