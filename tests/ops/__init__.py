"""Samples of torch's operator database: compiled against eager."""
