"""The tools around the core: each uses public names and ``inspection``, and could be removed with its folder."""
