"""Graphs run by other packages' runtimes, where those are installed."""
