"""Extensions of the core, which knows none of them by name (``rltrace.extension``)."""
