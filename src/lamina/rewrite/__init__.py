"""FX graph to FX graph: patterns, folding and layout."""
