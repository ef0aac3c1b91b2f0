"""Inference: interpret the jaxpr of a body abstractly, and compare the outcome with the claims of hints."""
