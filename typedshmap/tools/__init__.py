"""The tools around the core: each stands on public names and on ``inspection``, and is deleted with its folder."""
