"""Distances between tensors, series and curves. No part of any verdict."""
