"""Helpers the tests share: real servers, real processes, and the rule on skipping."""
