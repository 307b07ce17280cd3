"""The verbs of the extension, one file each."""
