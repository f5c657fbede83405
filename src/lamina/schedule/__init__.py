"""Loop program to plan: what is fused, in which order, in which memory."""
