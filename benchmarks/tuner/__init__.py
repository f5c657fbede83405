"""The tuner's own figures: gains and repeated choices, models against their copies, killed runs, GPUs, clusters."""
