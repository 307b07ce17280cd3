"""Captures: values of tensors and activation rows, recorded beside the rows where they are requested."""
