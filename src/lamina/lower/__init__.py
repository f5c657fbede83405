"""One rule for each core op: FX graph to loop program."""
