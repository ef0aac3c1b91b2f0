"""Inference: a traced body is read as a whole, and what it makes of its values is compared with what is claimed."""
