"""Edits that may cure a finding: made from the text, tried in memory, and told only if they hold."""
