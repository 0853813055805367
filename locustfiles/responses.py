"""The same workloads over the Responses API (`/v1/responses`): what agents speak."""

from locustfiles.options import ENTRY
from locustfiles.users import StreamUser

ENTRY.endpoint = "responses"


class ResponsesUser(StreamUser):
    """Sends every class of the workload to the Responses endpoint."""
