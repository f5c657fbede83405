"""The code in the documents runs."""
