"""Guards on which values of a call are the same object."""
