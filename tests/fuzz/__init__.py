"""Random programs: compiled against eager and fp64."""
