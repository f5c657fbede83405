"""The channels of torch's own on which Lamina is heard."""
