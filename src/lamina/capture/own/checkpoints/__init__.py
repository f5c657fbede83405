"""Activation checkpointing by the user."""
