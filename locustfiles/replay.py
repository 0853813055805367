"""Replays a recorded trace at its own times: `locust -f locustfiles/replay.py --trace FILE --workload azure-code`."""

from locustfiles.options import ENTRY
from locustfiles.users import StreamUser

ENTRY.workload = "azure-code"
ENTRY.arrival = "trace"


class ReplayUser(StreamUser):
    """Stands for Locust's user count; the requests leave when the trace says."""
