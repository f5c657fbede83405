"""What was compiled as one document: texts of all levels with links between their lines, decisions, kernels, times.

``document`` makes it from a ``Record``, ``write`` puts it into one HTML file that opens without a server.
"""
