"""What TorchDynamo puts in place of the function that makes modules."""
