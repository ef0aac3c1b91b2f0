"""``python -m typedshmap VERB``: each verb is a module here."""
