"""Every error class, raised by a real mistake."""
