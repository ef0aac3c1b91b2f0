"""The text of users' files: where its nodes stand, what its names mean, and the same text with some places changed."""
