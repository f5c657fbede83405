"""Rivals compiled ahead, in processes of their own."""
