"""The highest load that meets an SLO, for one launch config or for the best of many, in as few runs as will do."""
