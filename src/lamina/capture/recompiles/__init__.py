"""Why a function is compiled again, and what its caller can do about it."""
