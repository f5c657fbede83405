"""What a compiled program must share with the eager one besides its values."""
