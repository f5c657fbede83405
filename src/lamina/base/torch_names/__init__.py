"""Names of torch that texts have."""
