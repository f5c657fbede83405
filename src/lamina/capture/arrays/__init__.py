"""Where NumPy and torch meet in a traced program."""
