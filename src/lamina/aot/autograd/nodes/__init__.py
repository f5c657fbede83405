"""The nodes that an autograd function of AOTAutograd leaves in the history of its results."""
