"""One compiled form for graphs that differ in integers only."""
