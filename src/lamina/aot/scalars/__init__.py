"""Numbers of Python in graphs that AOTAutograd traces."""
