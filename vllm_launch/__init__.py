"""The engine under test: its launch configs, its start and stop, what it says of itself, and experiments on it.

Locust is started from here as a user would start it, as a process; `locustfiles` is never imported.
"""
