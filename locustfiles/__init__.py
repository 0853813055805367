"""Who sends the load, and how a stream is timed: the Locust entry points and the client beneath them."""
