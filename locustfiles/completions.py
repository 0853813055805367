"""The same workloads over `/v1/completions`: prompts as plain text, without the server's chat template."""

from locustfiles.options import ENTRY
from locustfiles.users import StreamUser

ENTRY.endpoint = "completions"


class CompletionsUser(StreamUser):
    """Sends every class of the workload to the completions endpoint."""
