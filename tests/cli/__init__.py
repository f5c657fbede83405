"""The lamina command."""
