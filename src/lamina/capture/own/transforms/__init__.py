"""Functions that torch's transforms and control flow are given, captured as graphs within a graph."""
