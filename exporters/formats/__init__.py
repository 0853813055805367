"""Other tools' formats: a run written as theirs, or theirs read as a run. One module a format."""
