"""Comparison of a compiled callable with eager and with a reference in double precision."""
