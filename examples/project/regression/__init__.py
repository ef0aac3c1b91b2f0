"""A small project that uses typedshmap: a model, a program that trains it, tests, and what CI runs."""
