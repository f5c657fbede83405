"""Decompositions of ops outside the core, one file for each op family."""
