"""Guards on missing attributes and keys: a graph is reused only while what its trace did not find is still missing."""
