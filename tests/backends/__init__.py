"""Backends: built in, registered, composed, installed; graphs split between them; the suite that checks them."""
