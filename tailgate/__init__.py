"""The words every room shares: exit codes, bad input, checked YAML files, service-level objectives.

Nothing here knows of Locust, HTTP or vLLM; every room may import it, it imports none of them.
"""

__version__ = "0.1.0"
