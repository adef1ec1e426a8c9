"""Mutation tests: small wrong changes to the code, each of which a unit test must notice."""
