"""Adapters: what rltrace reads of an engine beside the arguments of its models, for the recorder."""
