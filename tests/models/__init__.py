"""Real architectures from tiny configurations: forward and gradients against an fp64 run."""
