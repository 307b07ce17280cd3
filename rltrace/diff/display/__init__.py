"""Comparisons laid out for people: rows side by side, segments, single traces."""
