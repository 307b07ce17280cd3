"""What torch's compiler makes: its regions as ops, the optimizer steps in them, and how to do without it.

Owns all that knows of Dynamo and Inductor. Never causes anything to be compiled anew, nor keeps it from being compiled.
"""
