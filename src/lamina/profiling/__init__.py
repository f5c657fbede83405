"""Profiling: what each kernel of a program takes, beside what this machine can do."""
