"""What torch takes LSTMs apart into."""
