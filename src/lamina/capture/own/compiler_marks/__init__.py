"""What tells torch's compiler how functions and tensors are to be captured."""
