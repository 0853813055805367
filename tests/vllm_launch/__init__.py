"""Launch configs, engines started and ended, experiments: tried through real processes."""
