"""Values that are to be kept: which rows' they are, copies of their bytes, and the way to the writer.

Used only where values were asked for; a recording without them runs none of it.
"""
