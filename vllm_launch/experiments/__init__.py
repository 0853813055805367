"""Experiments: load tests on engines of changed configs, in an order that drift cannot favour, and what they come to.

The YAML files beside the modules are the experiments that come with the suite.
"""
