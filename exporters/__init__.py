"""What becomes of the measurements: records, run directories, summaries, comparisons, reports, metrics.

May import `tailgate` only. Nothing here sends a request or starts a server.
"""
