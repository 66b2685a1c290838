"""The Kubernetes client of the operator and the command.

`protocol` is its interface, `client` its implementation over `api_server`, `errors` what it raises.
"""
