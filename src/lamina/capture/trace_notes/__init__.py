"""What a trace came to that its graph does not tell, for those who judge whether the trace is right."""
