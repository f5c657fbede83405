"""The tests. ``--compile NAME`` runs those of the compiled programs with another compile function."""
