"""Inference: the jaxpr of a body is interpreted abstractly, and what is found is compared with what is claimed."""
