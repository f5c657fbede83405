"""The way from Python into a compiled function."""
