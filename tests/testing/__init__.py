"""The comparison with double precision finds what is wrong and accepts what is right."""
