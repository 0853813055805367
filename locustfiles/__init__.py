"""Who sends requests and how their streams are timed: Locust users, options, and the fleet of workers.

May import `workloads`, `exporters` and `tailgate`. `chat.py`, `completions.py`, `responses.py` and `replay.py` are for
`locust -f`.
"""
