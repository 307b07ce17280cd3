"""``rltrace confirm``: four arms over the steps covered, and the fewest kinds of op that make the difference."""
