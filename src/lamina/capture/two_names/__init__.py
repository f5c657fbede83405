"""What a traced program writes under one name and reads under another."""
