"""What the source itself must keep to: who imports whom, how long things are, what is frozen, what is documented."""
