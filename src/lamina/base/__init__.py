"""Values that every other package uses and that use none of them."""
