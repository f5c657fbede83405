"""Later calls without interpretation: where the facts of a call hold, its graphs and its writes are done again."""
