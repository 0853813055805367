"""Chat users: `locust -f locustfiles/chat.py -H http://127.0.0.1:8000 --workload chat-short`."""

from locustfiles.users import StreamUser


class ChatUser(StreamUser):
    """Sends what the workload says, to the endpoints that it says."""
