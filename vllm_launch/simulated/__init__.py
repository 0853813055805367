"""The embedded engine: vLLM's V1 scheduler on measured kernel times, for whoever has no GPU at hand.

Two halves. The pure core (`scheduler`, `kv_cache`, `step_time`, `engine`) has no sockets, threads or clocks and is
driven by whoever owns the time: `virtual` runs it as fast as it computes, `realtime` at the pace of the wall clock
behind `server`. Everything that knows HTTP, JSON or text is an adapter around that core.
"""
