"""What a program asks of the compilers of a process, by the stance and the switches of torch.compile."""
