"""What is captured beside rows where it was asked for: values of tensors, activations of modules."""
